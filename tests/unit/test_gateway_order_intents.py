"""Requests about the order of jobs.

The gateway records them, refuses them with the name of the field, and records nothing when nothing
changes.
"""

import pytest

from libs.common import facts as f
from libs.common.errors import Refused
from libs.common.model import JobId, JobSpec, TenantId
from libs.common.state.cluster import Cluster, Job
from libs.common.state.job import Batch
from libs.common.state.ordering import JobQueue
from services.api_gateway.access.roles import MEMBER, OPERATOR, Principal
from services.api_gateway.intents import order_intents as intents
from services.api_gateway.intents.job_intents import submission
from services.api_gateway.problems import Denied, Problem
from tests.given import spec

J = JobId("j")


def job(state: str = "queued", **fields: object) -> Job:
    return Job(job_id=J, spec=spec(**fields), tenant=TenantId("t"), user="ada", seq=1, state=state)


def test_a_submission_is_read_in_people_s_words() -> None:
    body = {
        "command": ["x"],
        "deadline": "2026-12-24T18:00:00Z",
        "estimate": "2h",
        "after": "afterok:a:b,afterany:c",
        "queue": "night",
    }
    found = submission(body, J).spec
    assert (found.deadline_ns, found.estimate_s, found.queue) == (
        1_798_135_200_000_000_000,
        7_200,
        "night",
    )
    assert found.after == (("afterok", "a"), ("afterok", "b"), ("afterany", "c"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("after", "before:a"),
        ("after", "afterok"),
        ("after", 3),
        ("after", [["afterok", 3]]),
        ("deadline", "soon"),
        ("deadline", "2h"),
        ("estimate", "x"),
    ],
)
def test_unreadable_value_is_refused_with_its_name(field: str, value: object) -> None:
    with pytest.raises(Refused, match=field):
        submission({"command": ["x"], field: value}, J)


def test_names_of_jobs_become_ids_and_queues_must_be_there() -> None:
    cluster = Cluster(queues={"night": JobQueue("night")})
    named = JobSpec(command=("x",), after=(("afterok", JobId("train")),), queue="night")
    assert intents.check_order(cluster, named, lambda ref: job().job_id).after == (
        ("afterok", "j"),
    )
    with pytest.raises(Refused, match="did you mean 'night'"):
        intents.check_order(
            cluster, JobSpec(command=("x",), queue="nigth"), lambda ref: job().job_id
        )
    with pytest.raises(Refused, match="singleton"):
        intents.check_order(
            cluster, JobSpec(command=("x",), singleton=True), lambda ref: job().job_id
        )
    plain = JobSpec(command=("x",), queue="default")
    assert intents.check_order(cluster, plain, lambda ref: job().job_id) is plain


def test_an_update_says_what_changes_and_nothing_else() -> None:
    assert intents.update({"priority": 80}, job(), "bob") == f.JobUpdated(
        job_id=J, priority=80, user="bob"
    )
    assert intents.update({"time_limit": "1h"}, job(), "bob") == f.JobUpdated(
        job_id=J, time_limit_s=3_600, user="bob"
    )
    assert intents.update({"priority": 50}, job(), "bob") is None


@pytest.mark.parametrize(
    "values", [{}, {"priority": 101}, {"priority": "high"}, {"priority": True}, {"time_limit": -1}]
)
def test_an_update_that_means_nothing_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(Refused):
        intents.update(values, job(), "bob")


def test_a_running_job_keeps_the_time_limit_that_it_began_with() -> None:
    with pytest.raises(Problem):
        intents.update({"time_limit": 60}, job("running"), "bob")
    assert intents.update({"priority": 9}, job("running"), "bob") is not None


def test_the_time_limit_of_a_batch_is_that_of_its_array() -> None:
    batch = job()
    batch.batch, batch.array = Batch(0, 10), JobId("a1")
    with pytest.raises(Problem, match="of array a1"):
        intents.update({"time_limit": 60}, batch, "bob")
    assert intents.update({"priority": 9}, batch, "bob") is not None


def test_hold_and_release_are_recorded_once() -> None:
    ada = Principal("k", "t", "ada", MEMBER)
    held = job()
    assert intents.hold(held, "ada") == f.JobUpdated(job_id=J, held=True, user="ada")
    assert intents.release(held, "ada", ada) is None
    held.order.held, held.order.held_by = True, "ada"
    assert intents.hold(held, "ada") is None
    assert intents.release(held, "ada", ada) == f.JobUpdated(job_id=J, held=False, user="ada")


def test_user_cannot_release_a_job_that_an_operator_holds() -> None:
    held = job()
    held.order.held, held.order.held_by = True, "root"
    with pytest.raises(Denied, match="held by root"):
        intents.release(held, "ada", Principal("k", "t", "ada", MEMBER))
    assert intents.release(held, "eve", Principal("k", "t", "eve", OPERATOR)) is not None


def test_only_an_attempt_can_be_requeued_and_only_once() -> None:
    running = job("running")
    assert intents.requeue(running, "ada") == f.RequeueRequested(job_id=J, attempt=1, user="ada")
    running.order.requeue = 1
    assert intents.requeue(running, "ada") is None
    with pytest.raises(Problem):
        intents.requeue(job(), "ada")


def test_ended_job_is_not_changed() -> None:
    with pytest.raises(Problem):
        intents.check_changeable(job("completed"))
    intents.check_changeable(job())


def test_a_queue_is_set_by_policy_weight_and_ageing() -> None:
    wish = {"policy": "priority", "weight": 300, "ageing": "10m", "backfill": False}
    assert intents.queue_setting(wish, "night", "root") == f.QueueSet(
        queue="night", policy="priority", weight=300, ageing_s=600, user="root", backfill=False
    )


def test_a_queue_has_time_slices_if_requested() -> None:
    wish = {"policy": "las", "time_slice": "10m"}
    assert intents.queue_setting(wish, "night", "root") == f.QueueSet(
        queue="night", policy="las", user="root", time_slice_s=600
    )
    with pytest.raises(Refused, match="ageing"):
        intents.queue_setting(wish | {"ageing": "1m"}, "night", "root")
    with pytest.raises(Refused, match="time_slice"):
        intents.queue_setting(wish | {"time_slice": -1}, "night", "root")


@pytest.mark.parametrize(
    "wish",
    [None, {}, {"policy": "best"}, {"policy": "fifo", "weight": 0}, {"policy": "fifo", "speed": 1}],
)
def test_a_queue_that_means_nothing_is_refused(wish: object) -> None:
    with pytest.raises(Refused):
        intents.queue_setting(wish, "night", "root")
    with pytest.raises(Refused, match="queue"):
        intents.queue_setting({"policy": "fifo"}, "Not A Name", "root")
