"""Candidates for a placement equal the result of a check of every single job.

They are the first job of each shape, except shapes that let others pass.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given as draw
from hypothesis import settings
from hypothesis import strategies as st

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import Allocation, JobId, NodeId, TenantId
from libs.common.state.cluster import Job
from services.scheduler.decide.decide import decide
from services.scheduler.decide.placing import place
from services.scheduler.placement.choose import Choice, serving
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.policies import POLICIES
from services.scheduler.queueing import lane as lane_module
from services.scheduler.queueing import queue_order as queue_order
from services.scheduler.queueing.backfill import BackfillPass
from services.scheduler.queueing.lane import Lane
from services.scheduler.queueing.limits import is_blocked, room_of
from services.scheduler.queueing.parking import Room
from services.scheduler.queueing.queue_order import candidates, heads
from services.scheduler.queueing.shape import Owner, Waiting
from services.scheduler.reservations.reservations import pass_of
from services.scheduler.state.state import State
from tests.given import SECOND_NS, ended, given, member, placed, registered, tell, waiting

ADD = Lane.add
TENANTS = ("a", "b")
NODES = ("n", "m")
KINDS: dict[str, dict[str, Any]] = {
    "small": {"gpus": 1},
    "two": {"gpus": 2},
    "no": {"gpus": 0},
    "part": {"gpu_memory_bytes": 20 << 30},
    "large": {"gpus": 6},
    "wide": {"gpus": 1, "nodes": 2},
    "near": {"gpus": 5, "nodes": 2, "rack": "required"},
    "early": {"gpus": 1, "reservation": "later"},
    "held": {"gpus": 1, "allocation": Allocation(expires_s=7_200)},
    "longer": {"gpus": 1, "allocation": Allocation(expires_s=9_000)},
    "night": {"gpus": 3, "queue": "night"},
}
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"),
            st.sampled_from(tuple(KINDS)),
            st.sampled_from(TENANTS),
            st.integers(0, 2),
        ),
        st.tuples(
            st.sampled_from(("limit", "budget")), st.sampled_from(TENANTS), st.integers(0, 3)
        ),
        st.tuples(
            st.sampled_from(("node", "lose")), st.sampled_from(NODES), st.sampled_from((4, 8))
        ),
        st.tuples(
            st.just("order"),
            st.sampled_from(("default", "night")),
            st.sampled_from(tuple(POLICIES)),
            st.sampled_from((True, False)),
        ),
        st.tuples(
            st.sampled_from(("priority", "time", "hold")), st.integers(1, 12), st.integers(0, 3)
        ),
        st.tuples(
            st.sampled_from(
                ("cancel", "requeue", "reserve", "clear", "look", "decide", "end", "pass")
            ),
            st.integers(0, 20),
        ),
    ),
    max_size=60,
)


class World:
    """A scheduler that hears what others say, one step after the other."""

    def __init__(self, policy: str) -> None:
        self.state = given(f.QueueSet(queue="default", policy=policy))
        self.now_s = 0
        self.submitted = 0
        self.incarnations = dict.fromkeys(NODES, 0)
        self.do: dict[str, Callable[..., None]] = {
            name.removeprefix("do_"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }

    def hear(self, fact: AnyFact) -> None:
        self.state._follow_fact(
            fact, tell(self.state.cluster, fact, self.now_s, seq=1_000 + self.submitted)
        )

    def do_submit(self, kind: str, tenant: str, priority: int) -> None:
        self.submitted += 1
        for fact in waiting(f"j{self.submitted}", tenant=tenant, priority=priority, **KINDS[kind]):
            self.hear(fact)

    def do_limit(self, tenant: str, gpus: int) -> None:
        self.hear(f.TenantSet(tenant=TenantId(tenant), max_gpu_share=100 * gpus))

    def do_budget(self, tenant: str, hours: int) -> None:
        self.hear(f.TenantSet(tenant=TenantId(tenant), gpu_hours=hours))

    def do_node(self, node: str, gpus: int) -> None:
        self.incarnations[node] += 1
        self.hear(registered(node, gpus, self.incarnations[node], rack=f"r{gpus}"))

    def do_lose(self, node: str, _: int) -> None:
        if self.incarnations[node]:
            self.hear(f.NodeLost(node_id=NodeId(node), incarnation=self.incarnations[node]))

    def do_order(self, queue: str, policy: str, backfill: bool) -> None:
        self.hear(f.QueueSet(queue=queue, policy=policy, backfill=backfill))

    def do_priority(self, number: int, priority: int) -> None:
        self.hear(f.JobUpdated(job_id=JobId(f"j{number}"), priority=priority))

    def do_time(self, number: int, time_limit_s: int) -> None:
        self.hear(f.JobUpdated(job_id=JobId(f"j{number}"), time_limit_s=time_limit_s))

    def do_hold(self, number: int, held: int) -> None:
        self.hear(f.JobUpdated(job_id=JobId(f"j{number}"), held=held > 0))

    def do_clear(self, _: int) -> None:
        self.hear(f.ReservationCleared(reservation="later"))

    def do_cancel(self, number: int) -> None:
        self.hear(f.CancelRequested(job_id=JobId(f"j{number}")))

    def do_requeue(self, number: int) -> None:
        """Also for a job that waits: its next attempt is then stopped at once."""
        self.hear(f.RequeueRequested(job_id=JobId(f"j{number}"), attempt=1))

    def do_reserve(self, start_s: int) -> None:
        start_ns = (self.now_s + start_s) * SECOND_NS
        self.hear(
            f.ReservationSet(
                reservation="later",
                nodes=(NodeId("n"),),
                start_ns=start_ns,
                end_ns=start_ns + 5 * SECOND_NS,
                tenants=(TenantId("a"),),
            )
        )

    def do_look(self, many: int) -> None:
        """Only so far."""
        for _, _ in zip(range(many), candidates(self.state), strict=False):
            pass

    def do_decide(self, _: int) -> None:
        for _ in range(100):
            facts = decide(self.state, self.now_s * SECOND_NS)
            if not facts:
                return
            self.state.apply_own(facts, self.now_s * SECOND_NS)
        raise AssertionError("it decides for ever")

    def do_end(self, which: int) -> None:
        placed = [job for job in self.state.cluster.jobs.values() if job.state == "placed"]
        for job in placed[which : which + 1]:
            for node in list(job.members):
                for fact in ended(job.job_id, node):
                    self.hear(fact)

    def do_pass(self, seconds: int) -> None:
        self.now_s += seconds
        self.state.pass_time(self.now_s * SECOND_NS)


def asked_one_by_one(state: State) -> list[Waiting]:
    return [
        head
        for head in heads(state)
        if not is_blocked(state, head.shape, state.cluster.jobs[head.job_id])
    ]


def walked(state: State) -> Iterator[Waiting]:
    """The heads that a preemption pass sees: none behind the first that waits for the same nodes,
    as far as whole lanes are skipped.
    """
    tried: dict[tuple[str, Owner], None] = {}
    for head in candidates(state, tried=tried):
        tried[head.lane.queue, head.shape.owner.by_reservation] = None
        yield head


def firsts(state: State, found: Iterable[Waiting]) -> list[str]:
    """The first head of each queue that waits for the nodes of each reservation, or for others."""
    first: dict[tuple[str, str], str] = {}
    for head in found:
        job = state.cluster.jobs[head.job_id]
        first.setdefault((head.lane.queue, pass_of(state, job)), head.job_id)
    return list(first.values())


def all_in_order(state: State) -> list[str]:
    """The first of each shape, by sorting all that wait."""
    lanes = {lane.lane_id: place for place, lane in enumerate(queue_order._lanes(state))}
    first: dict[object, str] = {}
    for each in sorted(
        state.queue.waiting.values(), key=lambda each: (lanes[each.lane], each.key, each.job_id)
    ):
        first.setdefault((each.lane, each.shape), each.job_id)
    return list(first.values())


def indexed(state: State) -> list[object]:
    """What each rule must act on, what is noted about attempts, and what is free of each node."""
    return [
        state.buckets.of,
        state.noted,
        +state.queue_held,
        state.queue.tenants,
        [
            place and (place.whole, place.parts, place.lefts, place.cpus_free, place.memory_free)
            for place in state.capacity.places
        ],
    ]


def check_built(lane: Lane, waits: list[Waiting]) -> None:
    """The first of each line stands behind its group, the first of each group in front; all is
    counted.
    """
    groups = {of_shape.group for of_shape in lane.shapes.values()}
    firsts = [(shape, id(of_shape.entries[0])) for shape, of_shape in lane.shapes.items()]
    assert sorted(firsts) == sorted(
        (each.shape, id(each)) for group in groups for each in group.firsts
    )
    assert all(lane.shapes[each.shape].group is group for group in groups for each in group.firsts)
    assert all(group.front is lane.front or group.front is lane.parked_front for group in groups)
    assert all(any(group.firsts[0] is each for each in group.front) for group in groups)
    keys = {
        (shape.owner, shape.need(lane.card_bytes))
        for shape, of_shape in lane.shapes.items()
        if of_shape.group is not lane.never
    }
    assert all((group.owner, group.need) in keys for group in groups - {lane.never})
    assert len(keys) == len(groups - {lane.never})
    assert lane.named == Counter(filter(None, (each.shape.reserved[0] for each in waits)))
    assert (lane.alive, lane.entry_count) == (
        len(waits),
        sum(len(of_shape.entries) for of_shape in lane.shapes.values()),
    )


def add_and_count(lane: Lane, entry: Waiting) -> None:
    """Add an entry. Each addition removes the groups that no shape uses, if there are many."""
    ADD(lane, entry)
    assert len(lane.by_need) <= lane_module.SPARE + len(lane.shapes)


@patch.object(Lane, "add", add_and_count)
@settings(max_examples=300, deadline=None)
@draw(STEPS, st.sampled_from(tuple(POLICIES)), st.sampled_from((2, 1_000)))
def test_blocked_groups_leave_the_same_candidates_as_single_checks(
    steps: list[tuple[object, ...]], policy: str, spare: int
) -> None:
    world = World(policy)
    for what, *more in steps:
        with patch.object(lane_module, "SPARE", spare):
            world.do[str(what)](*more)
            assert set(world.state.queue.lanes) == {
                each.lane for each in world.state.queue.waiting.values()
            }
            for lane_id, lane in world.state.queue.lanes.items():
                check_built(
                    lane,
                    [each for each in world.state.queue.waiting.values() if each.lane == lane_id],
                )
        heads_now = asked_one_by_one(world.state)
        assert list(candidates(world.state)) == heads_now
        assert firsts(world.state, walked(world.state)) == firsts(world.state, heads_now)
        assert [head.job_id for head in heads(world.state)] == all_in_order(world.state)
        fresh = State(world.state.cluster)
        fresh.pass_time(world.state.wall_ns)
        assert indexed(world.state) == indexed(fresh)
        for each in world.state.queue.waiting.values():
            assert serving(world.state.capacity, each.shape.request) == serving(
                fresh.capacity, each.shape.request
            )


def test_a_tenant_that_may_have_no_more_is_asked_once_however_many_shapes_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = f.TenantSet(tenant=TenantId("a"), max_gpu_share=100)
    over = [
        waiting(f"over{number}", tenant="a", gpus=2, cpus_milli=number + 1) for number in range(50)
    ]
    never = [waiting(f"never{number}", gpus=9, cpus_milli=number + 1) for number in range(50)]
    state = given(registered("n", cpus_milli=64_000), limit, *over, *never, waiting("last"))
    asked: list[str] = []

    def counted(state: State, owner: Owner) -> Room:
        asked.append(owner.tenant)
        return room_of(state, owner)

    monkeypatch.setattr(queue_order, "room_of", counted)
    assert [head.job_id for head in candidates(state)] == ["last"]
    assert asked == ["a", "default"]
    assert [head.job_id for head in candidates(state)] == ["last"]
    assert asked[2:] == ["a", "default"]
    for fact in (
        f.TenantSet(tenant=TenantId("a")),
        registered("n", 12, incarnation=2, cpus_milli=64_000),
    ):
        state._follow_fact(fact, tell(state.cluster, fact))
    assert len(list(candidates(state))) == 101


def test_jobs_that_come_and_go_behind_a_tenant_at_its_limit_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_module, "SPARE", 10)
    state = given(
        registered("n"),
        f.TenantSet(tenant=TenantId("a"), max_gpu_share=100),
        waiting("first", tenant="a", gpus=2),
    )
    for number in range(40):
        for fact in waiting(f"j{number}", tenant="a", gpus=2, cpus_milli=number % 3):
            state._follow_fact(fact, tell(state.cluster, fact, seq=100 + number))
        state.queue.remove(JobId(f"j{number}"))
        assert list(candidates(state)) == []
    (lane,) = state.queue.lanes.values()
    assert lane.entry_count == sum(len(of_shape.entries) for of_shape in lane.shapes.values()) <= 14
    assert [head.job_id for head in heads(state)] == ["first"]


def test_groups_of_shapes_that_left_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "SPARE", 10)
    state = given(registered("n"), waiting("first"))
    for number in range(40):
        for fact in waiting(f"j{number}", gpus=number + 2):
            state._follow_fact(fact, tell(state.cluster, fact, seq=100 + number))
        state.queue.remove(JobId(f"j{number}"))
        assert [head.job_id for head in heads(state)] == ["first"]
    (lane,) = state.queue.lanes.values()
    assert (len(lane.shapes), lane.entry_count) == (1, 1) and len(lane.by_need) <= 12


def test_no_job_is_tried_behind_one_that_must_not_be_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    choose = BackfillPass.choose

    def counted(self: BackfillPass, state: State, job: Job, request: ResourceRequest) -> Choice:
        asked.append(job.job_id)
        return choose(self, state, job, request)

    monkeypatch.setattr(BackfillPass, "choose", counted)
    busy = [*waiting("i"), placed("i", member("n", 0))]
    others = [waiting(f"j{gpus}", gpus=gpus) for gpus in (4, 3, 2, 1)]
    state = given(registered("n"), f.QueueSet(queue="default", policy="fifo"), busy, *others)
    assert not place(state) and asked == ["j4"]
    state._follow_fact(
        fact := f.QueueSet(queue="default", policy="fifo", backfill=True), tell(state.cluster, fact)
    )
    assert not place(state) and asked == ["j4", "j4", "j3", "j2", "j1"]


def test_a_second_scan_of_a_lane_is_refused_while_one_is_open() -> None:
    state = given(registered("n"), waiting("one"), waiting("two", gpus=2))
    first = heads(state)
    assert next(first).job_id == "one"
    with pytest.raises(AssertionError, match="two scans"):
        next(candidates(state))
    first.close()
    assert [head.job_id for head in candidates(state)] == ["one", "two"]


def test_a_lane_does_not_change_while_it_is_scanned() -> None:
    state = given(registered("n"), waiting("one"))
    first = heads(state)
    next(first)
    with pytest.raises(AssertionError, match="changes during a scan"):
        for fact in waiting("two"):
            state._follow_fact(fact, tell(state.cluster, fact, seq=1_000))
    first.close()
