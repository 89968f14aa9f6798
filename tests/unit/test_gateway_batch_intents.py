"""The body of a batch of jobs, and the names that its jobs use among each other."""

import pytest

from libs.common.errors import Refused
from libs.common.facts import JobSubmitted
from libs.common.messages.access_entry import TEXT_MAX
from libs.common.model import BATCH_JOBS_MAX, Array, JobId, JobSpec
from services.api_gateway.access import log_bounds
from services.api_gateway.access.idempotency import NEVER, once_each
from services.api_gateway.access.roles import MEMBER, Principal
from services.api_gateway.intents.batch_intents import NUMBERS_CHARS_MAX, Names, batch, denials
from services.api_gateway.problems import Problem

ADA = Principal(key_id="k1", tenant="t", user="ada", role=MEMBER)
BOB = Principal(key_id="k2", tenant="t", user="bob", role=MEMBER)


def test_batch_is_an_object_with_a_bounded_list_of_jobs() -> None:
    found = batch({"jobs": [{"command": ["true"]}, 7], "all_or_nothing": True})
    assert (found.jobs, found.all_or_nothing) == ([{"command": ["true"]}, 7], True)
    assert len(batch({"jobs": [{}] * BATCH_JOBS_MAX}).jobs) == BATCH_JOBS_MAX


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (None, "must be a JSON object"),
        ([], "must be a JSON object"),
        ({}, "jobs: missing"),
        ({"jobs": {}}, "jobs: expected a list"),
        ({"jobs": []}, "0 jobs: give 1 to 100"),
        ({"jobs": [{}] * (BATCH_JOBS_MAX + 1)}, "101 jobs: give 1 to 100"),
        ({"jobs": [{}], "all_or_none": True}, "did you mean 'all_or_nothing'"),
        ({"jobs": [{}], "all_or_nothing": "yes"}, "all_or_nothing: expected true or false"),
    ],
)
def test_batch_that_is_not_valid_is_refused(body: object, text: str) -> None:
    with pytest.raises(Refused, match=text):
        batch(body)


def test_job_may_name_an_earlier_one_of_its_batch() -> None:
    names = Names()
    names.accept(JobSubmitted(job_id=JobId("j1"), spec=JobSpec(command=("x",), name="train")))
    names.accept(JobSubmitted(job_id=JobId("j2"), spec=JobSpec(command=("x",))))
    assert (names.find("train"), names.find("other"), names.find("")) == ("j1", None, None)


def test_job_that_names_a_refused_one_is_refused() -> None:
    names = Names()
    for job in ({"name": "train"}, {"name": 7}, {}, 7):
        names.refuse(job)
    with pytest.raises(Refused, match="'train' is an earlier job of this batch"):
        names.find("train")
    assert names.find("") is None


def test_element_of_an_array_of_the_batch_is_refused() -> None:
    names = Names()
    array = JobSpec(command=("x",), name="train", array=Array(ranges=((0, 9, 1),)))
    names.accept(JobSubmitted(job_id=JobId("j1"), spec=array))
    names.refuse({"name": "other", "array": "0-9"})
    assert (names.find("train"), names.find("trains_3")) == ("j1", None)
    for ref in ("train_3", "other_3"):
        with pytest.raises(Refused, match="is an element of an array of this batch"):
            names.find(ref)
    names.accept(JobSubmitted(job_id=JobId("j2"), spec=JobSpec(command=("x",), name="train_3")))
    assert names.find("train_3") == "j2"
    names.accept(JobSubmitted(job_id=JobId("j3"), spec=JobSpec(command=("x",), name="train")))
    assert names.find("train_4") is None


def test_denials_of_a_batch_are_one_bounded_text() -> None:
    assert denials({0: "no", 3: "no", 7: "never"}) == "jobs 0, 3, 7: no; never"
    many = denials(dict.fromkeys(range(100), "no"))
    numbers, more = many.removeprefix("jobs ").removesuffix(" more: no").split(" and ")
    assert len(numbers) <= NUMBERS_CHARS_MAX
    assert numbers.split(", ") == [str(place) for place in range(100 - int(more))]
    assert len(denials({0: "x" * 1_000})) == TEXT_MAX


def test_each_job_of_a_batch_has_its_own_id_and_the_digest_of_the_request() -> None:
    first = once_each("key", "batch", ADA, {"jobs": [1, 2]}, 2)
    assert len({each.id for each in first}) == 2
    assert len({each.digest for each in first}) == 1
    other = once_each("key", "batch", ADA, {"jobs": [1]}, 1)
    assert other[0].id == first[0].id and other[0].digest != first[0].digest
    assert once_each(None, "batch", ADA, {}, 2) == (NEVER, NEVER)


def test_batch_of_another_user_of_the_tenant_is_another_request() -> None:
    ada, bob = (once_each("key", "batch", user, {"jobs": [1]}, 1)[0] for user in (ADA, BOB))
    assert ada.id == bob.id and ada.digest != bob.digest
    with pytest.raises(Problem, match="the key was used for another request"):
        bob.check(tenant_agrees=True, digest=ada.digest)


def test_problems_of_a_full_log_name_the_remedy() -> None:
    full, used = log_bounds.full("a job", 0.9, 0.8), log_bounds.used_up("t", 100, 7)
    assert (full.status, used.status, used.more) == (507, 429, {"retry_after_s": 7})
    assert "raise MUSTER_STREAM_BYTES" in full.detail and "its 100 bytes" in used.detail
