"""Endless kinds of jobs of one tenant cost others nothing: parked, checked a part at a time, and
bounded in a pass.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec import structs

from libs.common import facts as f
from libs.common.facts import AnyFact, JobPlaced
from libs.common.model import Allocation, JobId, NodeId, TenantId
from services.scheduler.decide import placing
from services.scheduler.decide.decide import decide
from services.scheduler.decide.placing import Examined, place
from services.scheduler.queueing import queue_order as queue_order
from services.scheduler.queueing.backfill import SCAN_MAX
from services.scheduler.queueing.lane import Lane
from services.scheduler.queueing.limits import room_of
from services.scheduler.queueing.parking import EVERY_ROOM, FREE, NO_ROOM, Need, Parked, Room
from services.scheduler.queueing.queue_order import candidates, heads
from services.scheduler.queueing.shape import Owner, Waiting
from services.scheduler.state.state import State
from tests.given import ended, given, member, placed, registered, tell, waiting

GIB = 1 << 30


class Group:
    """A group with a need."""

    def __init__(self, *need: int) -> None:
        self.need = Need(*need)


def names(state: State) -> list[str]:
    return [head.job_id for head in candidates(state)]


def hear(state: State, *facts: AnyFact) -> None:
    for fact in facts:
        state._follow_fact(fact, tell(state.cluster, fact, seq=1_000))


def parked(state: State) -> int:
    """How many groups are parked."""
    return sum(
        len(heap)
        for lane in state.queue.lanes.values()
        for each in lane.parked.values()
        for heap in each.heaps
    )


def begun(state: State) -> list[str]:
    """The jobs that are placed until nothing more is decided."""
    found = []
    while facts := decide(state, 0):
        found += [fact.job_id for fact in facts if isinstance(fact, JobPlaced)]
        state.apply_own(facts, 0)
    return found


def test_a_room_blocks_what_is_larger_in_one_place() -> None:
    room = Room(100, 10, lambda: 5)
    needs = (Need(100, 10, 5), Need(101, 10, 5), Need(100, 11), Need(100, 0, 6))
    assert [room.blocked_by(need) for need in needs] == [FREE, 0, 1, 2]
    assert EVERY_ROOM.blocked_by(Need(1 << 60, 1 << 60, 1 << 60)) == FREE
    assert NO_ROOM.blocked_by(Need(0)) == 0
    assert Room(0, 0, lambda: 0).blocked_by(Need(0)) == FREE


def test_parked_groups_wake_when_all_places_have_room() -> None:
    waiting_groups: Parked[Group] = Parked()
    small, large, pools = Group(100), Group(300), Group(200, 50)
    for group in (small, large, pools):
        waiting_groups.park(group, 0)
    assert list(waiting_groups.wake(Room(99))) == []
    assert list(waiting_groups.wake(Room(250, 10))) == [small]
    assert list(waiting_groups.wake(Room(250, 50))) == [pools]
    assert waiting_groups and list(waiting_groups.wake(EVERY_ROOM)) == [large]
    assert not waiting_groups


def test_sizes_at_a_limit_are_parked_and_wake_in_order() -> None:
    sizes = [waiting(f"j{gpus}", tenant="a", gpus=gpus) for gpus in (4, 3, 2, 1)]
    busy = [*waiting("i", tenant="a"), placed("i", member("n", 0))]
    limit = f.TenantSet(tenant=TenantId("a"), max_gpu_share=100)
    state = given(registered("n", 8), limit, busy, *sizes)
    assert names(state) == [] and parked(state) == 4
    hear(state, f.TenantSet(tenant=TenantId("a"), max_gpu_share=400))
    assert names(state) == ["j3", "j2", "j1"] and parked(state) == 1
    hear(state, f.TenantSet(tenant=TenantId("a"), max_gpu_share=300))
    assert names(state) == ["j2", "j1"] and parked(state) == 2
    hear(state, *ended("i", "n"))
    assert names(state) == ["j3", "j2", "j1"]


def test_durations_under_a_budget_are_parked() -> None:
    budget = f.TenantSet(tenant=TenantId("a"), gpu_hours=1)
    holds = [
        waiting(f"j{seconds}", tenant="a", allocation=Allocation(expires_s=seconds))
        for seconds in (7_200, 3_700, 3_600)
    ]
    state = given(registered("n"), budget, *holds)
    assert names(state) == ["j3600"] and parked(state) == 2
    hear(state, f.TenantSet(tenant=TenantId("a"), gpu_hours=2))
    assert names(state) == ["j7200", "j3700", "j3600"]


def test_memory_near_a_limit_counts_as_a_part_of_the_largest_card() -> None:
    limit = f.TenantSet(tenant=TenantId("a"), max_gpu_share=50)
    amounts = [waiting(f"j{gib}", tenant="a", gpu_memory_bytes=gib * GIB) for gib in (60, 50, 30)]
    small = registered("n")
    state = given(small, limit, *amounts)
    assert names(state) == ["j30"] and parked(state) == 2
    large = registered("m")
    cards = tuple(structs.replace(gpu, memory_bytes=160 * GIB) for gpu in large.gpus)
    hear(state, structs.replace(large, gpus=cards))
    assert names(state) == ["j60", "j50", "j30"]


def test_jobs_before_their_reservation_are_parked_together() -> None:
    reservation = f.ReservationSet(
        reservation="later",
        nodes=(NodeId("n"),),
        start_ns=10,
        end_ns=20,
        tenants=(TenantId("a"),),
    )
    jobs = [waiting(f"j{gpus}", tenant="a", gpus=gpus, reservation="later") for gpus in (1, 2)]
    others = waiting("of-another", tenant="b", reservation="later")
    state = given(registered("n"), reservation, *jobs, others)
    assert names(state) == ["of-another"] and parked(state) == 2
    state.pass_time(10)
    assert names(state) == ["j1", "j2", "of-another"]


def test_impossible_kinds_are_checked_again_a_part_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = [waiting(f"j{number}", gpus=8, cpus_milli=number) for number in range(1, 10)]
    state = given(registered("n", cpus_milli=64_000), *kinds)
    assert names(state) == []
    monkeypatch.setattr(queue_order, "RECHECK_MAX", 4)
    hear(state, registered("m", 8, cpus_milli=64_000))
    assert names(state) == ["j1", "j2", "j3", "j4"]
    assert len(names(state)) == 8
    assert len(names(state)) == 9 and len(names(state)) == 9


def test_idle_time_finds_the_impossible_kind_that_a_new_node_can_hold() -> None:
    kinds = [waiting(f"j{number}", gpus=9, cpus_milli=number) for number in range(1, 150)]
    last = waiting("last", gpus=8)
    state = given(registered("n", cpus_milli=64_000), *kinds, last)
    assert begun(state) == []
    hear(state, registered("m", 8, cpus_milli=64_000))
    assert begun(state) + begun(state) == ["last"]


def test_a_tenant_with_many_kinds_leaves_others_their_part_of_a_pass() -> None:
    busy = [*waiting("i", tenant="b", gpus=3), placed("i", member("n", 0, 1, 2))]
    kinds = [
        waiting(f"j{number}", tenant="a", gpus=2, cpus_milli=number)
        for number in range(1, 2 * SCAN_MAX)
    ]
    small = waiting("small", tenant="b", time_limit_s=1)
    history = [registered("n", cpus_milli=64_000), registered("m", 1), busy, *kinds]
    assert [
        fact.job_id for fact in place(given(*history, small)) if isinstance(fact, JobPlaced)
    ] == [JobId("small")]
    assert place(given(*history)) == ()


def test_many_kinds_of_several_tenants_leave_a_part_of_the_pass_to_the_last_one() -> None:
    """The parts of four tenants are a whole pass."""
    tenants = ("a", "b", "c", "d")
    busy = [*waiting("i", tenant="e", gpus=3), placed("i", member("n", 0, 1, 2))]
    kinds = [
        waiting(f"{tenant}{number}", tenant=tenant, gpus=2, cpus_milli=number)
        for tenant in tenants
        for number in range(1, SCAN_MAX)
    ]
    small = waiting("small", tenant="e", time_limit_s=1)
    state = given(registered("n", cpus_milli=64_000), registered("m", 1), busy, *kinds, small)
    assert [fact.job_id for fact in place(state) if isinstance(fact, JobPlaced)] == ["small"]


def test_a_pass_examines_a_bounded_number_of_kinds_of_many_tenants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placing, "SCAN_MAX", 8)
    examined = Examined([TenantId(f"t{number}") for number in range(100)])
    over = [examined.note(TenantId(f"t{number}")) for number in range(16)]
    assert over == [False] * 15 + [True]


def test_a_group_that_was_allowed_stays_so_when_another_tenant_is_full() -> None:
    jobs = [
        waiting(f"{tenant}{n}", tenant=tenant, cpus_milli=n) for n in (1, 2, 3) for tenant in "ab"
    ]
    state = given(registered("n", cpus_milli=64_000), *jobs)
    full: set[TenantId] = set()
    found = []
    for head in candidates(state, full):
        found.append(head.job_id)
        if head.job_id == "b1":
            full.add(TenantId("a"))
    assert found == ["a1", "b1", "b2", "b3"]
    assert names(state) == ["a1", "b1", "a2", "b2", "a3", "b3"]


@pytest.mark.parametrize(
    ("named", "start_ns", "end_ns"), [("course", 0, 9), ("course", 11, 99), ("", 0, 99)]
)
def test_a_queue_that_was_tried_is_left_unless_a_waiting_job_names_an_open_reservation(
    monkeypatch: pytest.MonkeyPatch, named: str, start_ns: int, end_ns: int
) -> None:
    """The reservation is over, has not begun, or is named by no job that still waits."""
    course = f.ReservationSet(
        reservation="course",
        nodes=(NodeId("n"),),
        start_ns=start_ns,
        end_ns=end_ns,
        tenants=(TenantId("b"),),
    )
    state = given(
        registered("n"),
        [f.QueueSet(queue="q", policy="fair_share"), course],
        *[
            waiting(f"{tenant}{n}", tenant=tenant, queue="q", gpus=n)
            for tenant in "ab"
            for n in (1, 2)
        ],
        waiting("named", tenant="b", queue="q", reservation=named),
        waiting("gone", tenant="b", queue="q", reservation="course"),
    )
    hear(state, f.CancelRequested(job_id=JobId("gone")))
    state.pass_time(10)
    scanned = []
    scan = Lane.candidates

    def noted(self: Lane, *args: Any) -> Iterator[Waiting]:
        scanned.append(self.lane_id.tenant)
        return scan(self, *args)

    monkeypatch.setattr(Lane, "candidates", noted)
    tried: dict[tuple[str, Owner], None] = {}
    for head in candidates(state, tried=tried):
        tried[head.lane.queue, head.shape.owner.by_reservation] = None
    assert scanned == ["a"]


@pytest.mark.parametrize("reserved", [False, True])
def test_of_a_queue_that_was_tried_only_jobs_for_other_nodes_follow(reserved: bool) -> None:
    course = f.ReservationSet(
        reservation="course",
        nodes=(NodeId("n"),),
        start_ns=0,
        end_ns=1 << 62,
        tenants=(TenantId("b"),),
    )
    state = given(
        registered("n", cpus_milli=64_000),
        [f.QueueSet(queue="q", policy="fair_share"), *([course] if reserved else [])],
        *[waiting(f"a{n}", tenant="a", queue="q", cpus_milli=n) for n in (1, 2)],
        *[waiting(f"b{n}", tenant="b", queue="q", cpus_milli=n) for n in (1, 2)],
        waiting("last"),
        *[waiting(f"c{n}", tenant="b", queue="q", reservation="course") for n in (1, 2)],
    )
    tried: dict[tuple[str, Owner], None] = {}
    found = []
    for head in candidates(state, tried=tried):
        found.append(head.job_id)
        tried[head.lane.queue, head.shape.owner.by_reservation] = None
    assert found == (["last", "a1", "c1"] if reserved else ["last", "a1"])
    assert len(names(state)) == 6


def test_a_parked_group_whose_jobs_have_gone_wakes_without_harm() -> None:
    limit = f.TenantSet(tenant=TenantId("a"), max_gpu_share=100)
    jobs = [waiting("gone", tenant="a", gpus=2), waiting("stays", tenant="a")]
    state = given(registered("n"), limit, *jobs)
    assert names(state) == ["stays"]
    state.queue.remove(JobId("gone"))
    assert [head.job_id for head in heads(state)] == ["stays"]
    hear(state, f.TenantSet(tenant=TenantId("a")))
    assert names(state) == ["stays"] and parked(state) == 0


def test_a_tenant_that_was_never_set_has_every_room() -> None:
    state = given(registered("n"), waiting("j"))
    room = room_of(state, Owner(TenantId("unknown"), ("", "")))
    assert room.blocked_by(Need(1 << 60, 1 << 60, 1 << 60)) == FREE
