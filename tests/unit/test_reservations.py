"""Nodes reserved for tenants or for maintenance: which jobs may begin there, and when."""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import Allocation, JobId, NodeId, TenantId
from services.scheduler.decide.decide import decide
from services.scheduler.explain.explain import explain
from services.scheduler.reservations import reservations
from services.scheduler.state.state import State
from tests.given import SECOND_NS, given, member, placed, registered, tell, waiting

# An attempt with a limit of 80 s has ended 100 s after its placement, and not later.
LASTS_100: dict[str, Any] = {"time_limit_s": 80, "start_s": 10, "grace_s": 10}


def kept(
    *nodes: str, start: float = 100, end: float = 200, name: str = "course", **who: Any
) -> f.ReservationSet:
    named = tuple(NodeId(node) for node in nodes)
    return f.ReservationSet(
        reservation=name,
        nodes=named,
        start_ns=int(start * SECOND_NS),
        end_ns=int(end * SECOND_NS),
        **who,
    )


def hear(state: State, fact: AnyFact) -> None:
    """As from the log: by a gateway."""
    number = (
        state.cluster.writers["facts.gateway.a"].number + 1
        if "facts.gateway.a" in state.cluster.writers
        else 1
    )
    commit = f.Commit(
        version=f.VERSION,
        min_reader=f.VERSION,
        writer="facts.gateway.a",
        number=number,
        epoch=0,
        at_ns=0,
        seen=0,
        facts=(fact,),
    )
    state.apply_entry(state.seq + 1, "facts.gateway.a", commit)


def begin(state: State, now_s: float = 0) -> list[tuple[str, str]]:
    """The jobs that are placed now, and where their first members are."""
    found = []
    while facts := decide(state, int(now_s * SECOND_NS)):
        state.apply_own(facts, int(now_s * SECOND_NS))
        found += [
            (str(fact.job_id), str(fact.members[0].node_id))
            for fact in facts
            if isinstance(fact, f.JobPlaced)
        ]
    return found


RED: dict[str, Any] = {"tenants": (TenantId("red"),)}


@pytest.mark.parametrize(("now_s", "placed_on"), [(0, "a"), (1, "b"), (150, "b"), (200, "a")])
def test_a_job_begins_only_where_it_has_ended_before_others_time_begins(
    now_s: float, placed_on: str
) -> None:
    state = given(registered("a"), registered("b"), kept("a", **RED), waiting("j", **LASTS_100))
    assert begin(state, now_s) == [("j", placed_on)]


@pytest.mark.parametrize(("expires_s", "placed_on"), [(90, "a"), (91, "b")])
def test_an_allocation_begins_only_where_its_time_is_over_before_others_time_begins(
    expires_s: int, placed_on: str
) -> None:
    held = waiting("j", allocation=Allocation(expires_s), grace_s=10)
    state = given(registered("a"), registered("b"), kept("a", **RED), held)
    assert begin(state) == [("j", placed_on)]


def test_a_job_without_a_limit_keeps_off_a_node_once_a_time_is_set_there() -> None:
    state = given(registered("a"), waiting("j"), kept("a", start=10_000, end=20_000))
    assert begin(state) == []
    hear(state, f.ReservationCleared(reservation="course"))
    assert begin(state) == [("j", "a")]


def test_no_job_waits_for_a_reservation_that_is_over() -> None:
    state = given(registered("a"), kept("a"), waiting("j"))
    assert (begin(state, 199), begin(state, 200)) == ([], [("j", "a")])


def test_a_gang_keeps_off_too() -> None:
    nodes = [registered("a"), registered("b"), registered("c")]
    assert begin(given(nodes, kept("b"), waiting("j", nodes=2, gpus=4))) == [("j", "a")]
    assert begin(given(nodes, kept("b", "c"), waiting("j", nodes=2, gpus=4))) == []


def test_a_job_starts_in_its_tenants_reservation_when_that_begins() -> None:
    state = given(
        registered("a"),
        registered("b"),
        kept("b", **RED),
        waiting("j", tenant="red", reservation="course"),
    )
    assert [begin(state, now_s) for now_s in (0, 99, 100)] == [[], [], [("j", "b")]]


def test_a_job_before_its_reservation_blocks_no_other_job() -> None:
    early = waiting("j", tenant="red", reservation="course")
    fifo = f.QueueSet(queue="default", policy="fifo")
    assert begin(
        given(registered("a"), registered("b"), fifo, kept("b", **RED), early, waiting("k", gpus=4))
    ) == [("k", "a")]


def test_a_reservation_is_also_for_users() -> None:
    spec = waiting("j", reservation="course")
    ada = [f.JobSubmitted(job_id=JobId("ada"), spec=spec[0].spec, user="ada"), *waiting("ada")[1:]]  # type: ignore[attr-defined]
    state = given(registered("a"), kept("a", start=0, users=("ada",)), spec, ada)
    assert begin(state) == [("ada", "a")]


def test_a_reservation_that_is_not_for_a_job_or_not_there_changes_nothing_for_it() -> None:
    assert begin(
        given(
            registered("a"),
            registered("b"),
            kept("a", start=0, **RED),
            waiting("j", reservation="course"),
        )
    ) == [("j", "b")]
    assert begin(given(registered("a"), waiting("j", reservation="course"))) == [("j", "a")]


def test_within_a_reservation_a_maintenance_counts() -> None:
    work = kept("a", start=50, end=60, name="work")
    ours = waiting("j", tenant="red", reservation="course", **LASTS_100)
    assert begin(
        given(registered("a"), registered("b"), kept("a", "b", start=0, **RED), work, ours)
    ) == [("j", "b")]


def test_the_first_job_reserves_nodes_that_are_open_to_it_then() -> None:
    busy = [*waiting("i", gpus=4, **LASTS_100), placed("i", member("a", 0, 1, 2, 3))]
    history = [registered("a"), *busy, kept("a", start=150), *waiting("big", gpus=4, **LASTS_100)]
    gone = [
        f.JobFinished(JobId("i"), 1, NodeId("a"), exit_code=0),
        f.JobReleased(JobId("i"), 1, NodeId("a")),
    ]
    state = given(
        history,
        f.JobStarted(JobId("i"), 1, NodeId("a")),
        gone,
        waiting("short", time_limit_s=50),
        waiting("long"),
    )
    assert [begin(state, now_s) for now_s in (100, 200)] == [[], [("big", "a")]]
    early = given(
        history,
        f.JobStarted(JobId("i"), 1, NodeId("a")),
        gone,
        waiting("short", time_limit_s=20, start_s=9, grace_s=1),
    )
    assert begin(early, 110) == [("short", "a")]


def test_a_time_that_is_far_puts_no_promise_off() -> None:
    busy = [*waiting("i", gpus=2, **LASTS_100), placed("i", member("a", 0, 1))]
    far = kept("a", start=9_000, end=9_900)
    state = given(
        registered("a"), busy, far, waiting("big", gpus=4, **LASTS_100), waiting("j", **LASTS_100)
    )
    assert begin(state, 1) == []
    assert begin(
        given(registered("a"), busy, far, waiting("big", gpus=4), waiting("j", **LASTS_100)), 1
    ) == [("j", "a")]


def test_a_head_reservation_within_a_reservation_uses_its_nodes() -> None:
    ours = waiting("big", gpus=4, tenant="red", reservation="course")
    busy = [*waiting("i"), placed("i", member("b", 0))]
    history = [
        registered("a"),
        registered("b"),
        *busy,
        kept("b", start=0, **RED),
        *ours,
        *waiting("k", gpus=4),
    ]
    assert begin(given(history)) == [("k", "a")]
    assert begin(given(history, waiting("l", tenant="red", reservation="course"))) == [("k", "a")]


def test_why_names_what_is_kept_from_a_job() -> None:
    state = given(
        registered("a"),
        registered("b"),
        kept("a", **RED),
        kept("b", start=0, name="repair"),
        waiting("j"),
    )
    found = explain(state, JobId("j"))
    assert [(each["what"], each["detail"]) for each in found["blockers"]] == [
        ("maintenance", "b (repair, for 200 s more)"),
        ("reserved for others", "a (course, begins in 100 s, for 100 s)"),
    ]
    early = given(
        registered("a"), kept("a", **RED), waiting("j", tenant="red", reservation="course")
    )
    found = explain(early, JobId("j"))
    assert found["answer"] == "its reservation course has not begun"
    assert [each["what"] for each in found["blockers"]] == ["runs in its reservation only"]


def test_sets_of_nodes_that_are_kept_are_looked_up_anew_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reservations, "SETS_MAX", 1)
    state = given(
        registered("a"),
        registered("b"),
        registered("c"),
        kept("a", start=0),
        kept("b", start=0, name="other"),
        waiting("j"),
    )
    assert begin(state) == [("j", "c")]
    assert len(state.capacity.sets) == 1


def test_ended_reservations_are_forgotten_when_another_is_set() -> None:
    state = given(kept("a", name="old"))
    tell(state.cluster, kept("a", name="new", start=300, end=400), at_s=200)
    assert list(state.cluster.reservations) == ["new"]
    tell(state.cluster, f.ReservationCleared(reservation="old"))
    assert state.cluster.ignored == 1
