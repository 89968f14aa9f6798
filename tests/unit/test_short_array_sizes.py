"""Batches of a short array are as small as they must be. None begins that would have to wait."""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, NodeId
from services.scheduler.placement.forecast import latest_end_ns
from services.scheduler.reservations.reservations import window_words
from services.scheduler.state.state import State
from tests.given import SECOND_NS, given, member, placed, registered, waiting
from tests.unit.preemption_facts import running
from tests.unit.scheduler_decisions import decisions
from tests.unit.test_short_arrays import NODE, TENANT, short

OTHER = registered("b", gpus=2, isolation=NODE.isolation)


def window(start_s: int, node: str = "a") -> f.ReservationSet:
    """A maintenance of the node, from then on."""
    return f.ReservationSet(
        reservation=f"repair {node}",
        nodes=(NodeId(node),),
        start_ns=start_s * SECOND_NS,
        end_ns=(start_s + 10_000) * SECOND_NS,
    )


def busy(job: str, node: str, *gpus: int, **fields: Any) -> list[AnyFact]:
    return [*waiting(job, gpus=len(gpus), **fields), placed(job, member(node, *gpus))]


def sizes(state: State) -> list[int]:
    """Return the sizes of the batches that begin now; each of them is placed before the next one
    begins.
    """
    facts = decisions(state)
    begun, placements = facts[::2], facts[1::2]
    assert [fact.job_id for fact in begun if isinstance(fact, f.ElementBegun)] == [
        fact.job_id for fact in placements if isinstance(fact, f.JobPlaced)
    ]
    assert len(begun) == len(placements)
    return [fact.count for fact in begun if isinstance(fact, f.ElementBegun)]


def last_end_s(state: State, node: str = "a") -> int:
    """Return when the last batch on the node ends at the latest."""
    jobs = state.cluster.jobs.values()
    return max(
        latest_end_ns(job.spec, job.placed_ns) // SECOND_NS
        for job in jobs
        if job.batch is not None and NodeId(node) in job.members
    )


def test_no_batch_begins_while_not_even_one_element_could_run() -> None:
    """One element of 5 s may take 116 s with its start, its grace and the time beside it."""
    state = given(NODE, window(115), short("0-9999", time_limit_s=5))
    assert decisions(state) == []
    assert state.cluster.tenants[TENANT].waiting == 10_000
    assert [what for what, _, _ in window_words(state, state.cluster.jobs[JobId("j")])] == [
        "maintenance"
    ]
    assert sizes(given(NODE, window(117), short("0-9999", time_limit_s=5))) == [1] * 4


def test_batches_are_so_small_that_they_end_before_a_maintenance() -> None:
    state = given(NODE, window(1_000), short("0-9999", time_limit_s=5))
    assert sizes(state) == [39, 38, 38, 38]
    assert 500 < last_end_s(state) <= 1_000


def test_batches_keep_their_size_on_nodes_without_a_maintenance() -> None:
    state = given(NODE, OTHER, window(1_000), short("0-9999", time_limit_s=5))
    assert sizes(state) == [625, 585, 34, 34, 34, 33]
    assert last_end_s(state) <= 1_000 < last_end_s(state, "b")


def test_a_short_array_does_not_hide_shorter_jobs() -> None:
    short_array = short("0-9999", time_limit_s=5)
    state = given(NODE, window(99), short_array, waiting("short", time_limit_s=5))
    assert [fact.job_id for fact in decisions(state) if isinstance(fact, f.JobPlaced)] == ["short"]


def test_batches_are_so_small_that_they_do_not_delay_the_first_job() -> None:
    state = given(
        NODE,
        busy("other", "a", 0, 1, 2, time_limit_s=400),
        waiting("first", gpus=4, priority=90),
        short("0-9999", time_limit_s=5),
    )
    assert sizes(state) == [19]
    assert last_end_s(state) <= 440


@pytest.mark.parametrize(("limit_s", "size"), [(0, [625]), (5, [625])])
def test_batches_keep_their_size_on_nodes_that_are_not_reserved(
    limit_s: int, size: list[int]
) -> None:
    state = given(
        NODE,
        registered("b", gpus=1, isolation=NODE.isolation),
        busy("other", "a", 0, 1, 2, 3, time_limit_s=400),
        waiting("first", gpus=4, priority=90),
        short("0-9999", time_limit_s=limit_s),
    )
    assert sizes(state) == size


def test_no_batch_without_a_time_limit_begins_on_reserved_nodes() -> None:
    state = given(
        NODE,
        busy("other", "a", 0, 1, 2, time_limit_s=400),
        waiting("first", gpus=4, priority=90),
        short("0-9999"),
    )
    assert decisions(state) == []


def test_room_is_made_for_a_batch_that_ends_before_a_maintenance() -> None:
    state = given(
        NODE,
        running("low", 0, 1, 2, 3),
        window(1_000),
        short("0-9999", time_limit_s=5, priority=90),
    )
    begun, reserved, preempted = decisions(state)
    assert isinstance(begun, f.ElementBegun)
    assert begun.count == 39
    assert isinstance(reserved, f.DevicesReserved)
    assert isinstance(preempted, f.JobPreempted)
    assert reserved.job_id == begun.job_id == preempted.by


@pytest.mark.parametrize("policy", ["srsf", "deadline"])
@pytest.mark.parametrize("fields", [{"estimate_s": 1}, {"time_limit_s": 1}, {}])
def test_a_batch_is_ordered_before_its_array(policy: str, fields: dict[str, Any]) -> None:
    """Its estimate and its limit are those of all its elements."""
    queue = f.QueueSet(queue="default", policy=policy)
    deadline_ns = 500 * SECOND_NS
    state = given(NODE, [queue], short("0-9999", deadline_ns=deadline_ns, **fields))
    assert sizes(state) == [625, 585, 549, 515]


def test_a_batch_keeps_the_place_of_its_array_among_other_jobs() -> None:
    state = given(
        NODE,
        [f.QueueSet(queue="default", policy="srsf")],
        busy("other", "a", 0, 1, 2),
        short("0-9999", estimate_s=1),
        waiting("longer", estimate_s=2),
    )
    assert sizes(state) == [625]
