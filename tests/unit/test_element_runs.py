"""Runs of results: they say the same as the list of results."""

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from libs.common import element_runs
from libs.common import facts as f
from libs.common.model import JobId, NodeId, TenantId
from libs.common.state.job import Batch
from services.api_gateway.views.history import summary

RESULTS = st.lists(st.sampled_from((0, 0, 0, 1, 256 + 9, element_runs.AT_LIMIT)), max_size=30)


@given(RESULTS, st.integers(-3, 40))
def test_runs_say_the_same_as_the_list_of_results(results: list[int], place: int) -> None:
    runs = element_runs.of_results(results)
    assert element_runs.listed(runs) == results and element_runs.count(runs) == len(results)
    assert all(a[1] != b[1] for a, b in pairwise(runs))
    from_there = element_runs.listed(element_runs.from_place(runs, place))
    assert from_there == results[max(0, place) :]
    before = element_runs.listed(element_runs.until(runs, max(0, place)))
    missing = max(0, place - len(results))
    assert before == results[: max(0, place)] + [element_runs.LOST] * missing
    assert element_runs.failures(runs) == sum(result != 0 for result in results)
    assert element_runs.is_right(runs)


def test_a_result_has_the_state_code_and_reason_of_a_job() -> None:
    results = (0, 3, 256 + 15, element_runs.AT_LIMIT, element_runs.LOST)
    assert [element_runs.shell_code(each) for each in results] == [0, 3, 143, 137, None]
    assert [element_runs.state_of(each) for each in results] == ["completed", *["failed"] * 4]
    assert [element_runs.reason_of(each) for each in results] == [
        "exited",
        "failed",
        "signalled",
        "time_limit",
        "element_lost",
    ]
    assert element_runs.first_failure(((2, 0), (1, 3), (1, 4))) == 3
    assert element_runs.first_failure(((2, 0),)) is None


def test_a_node_may_not_report_lost_or_impossible_results() -> None:
    for wrong in ((0, 0), (1_001, 0), (1, -1), (1, element_runs.LOST)):
        assert not element_runs.is_right((wrong,))


def test_equal_runs_share_their_memory_also_after_a_restart() -> None:
    alternating = element_runs.of_results([0, 1] * 500)
    assert len({id(run) for run in alternating}) == 2
    batch = msgspec.msgpack.encode(Batch(0, 1_000, alternating))
    again = msgspec.msgpack.decode(batch, type=Batch).runs
    assert again == alternating and len({id(run) for run in again}) == 2


def test_the_limit_of_an_element_comes_back_from_that_of_its_batch() -> None:
    for number in (1, 7, 1_000):
        for grace_s in (0, 10):
            whole = element_runs.batch_limit_s(90, number, grace_s)
            assert whole > (90 + grace_s) * number
            assert element_runs.element_limit_s(whole, number, grace_s) == 90
    assert element_runs.batch_limit_s(0, 5, 10) == element_runs.element_limit_s(0, 5, 10) == 0


def test_the_history_says_what_ended_and_what_begun() -> None:
    ended = f.ElementsEnded(
        job_id=JobId("j_0-9"),
        attempt=1,
        node_id=NodeId("a"),
        first=0,
        runs=((4, 0), (1, 2), (3, 0)),
        begun=9,
    )
    assert summary(ended) == (
        "elements of attempt 1 ended on a: 7 exited, 1 failed; 9 of the batch have begun"
    )
    begun = f.ElementBegun(
        job_id=JobId("j_0-9"), array=JobId("j"), number=0, tenant=TenantId("default"), count=10
    )
    assert summary(begun) == "batch of 10 elements of array j from 0 on begun"
    alone = f.ElementBegun(
        job_id=JobId("j_5"), array=JobId("j"), number=5, tenant=TenantId("default")
    )
    assert summary(alone) == "element 5 of array j begun"
