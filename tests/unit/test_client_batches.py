"""How jobs are spread over requests, and what their refusals become."""

from libs.client import batches
from libs.client.errors import InvalidRequest, RateLimited
from libs.common.model import BATCH_JOBS_MAX


def test_jobs_are_split_in_order_by_their_number_and_size() -> None:
    small = [{"name": str(number)} for number in range(BATCH_JOBS_MAX + 1)]
    assert [len(part) for part in batches.split(small)] == [BATCH_JOBS_MAX, 1]
    assert [job for part in batches.split(small) for job in part] == small
    large = {"env": {"A": "a" * (batches.BYTES_MAX // 2)}}
    assert [len(part) for part in batches.split([large, large, {}])] == [1, 2]
    assert batches.split([]) == []


def test_refusals_are_the_errors_of_single_requests() -> None:
    wrong = batches.refusal({"status": 422, "detail": "gpus: 99 is out of bounds"})
    assert isinstance(wrong, InvalidRequest) and wrong.field == "gpus"
    late = batches.refusal({"status": 429, "detail": "later", "retry_after_s": 7})
    assert isinstance(late, RateLimited) and late.retry_after_s == 7
