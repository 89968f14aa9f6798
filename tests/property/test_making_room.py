"""Preemption compared with every other choice on small clusters.

It finds room whenever there can be some, ends no job in vain, and among jobs of equal size ends
those that lose least.
"""

from collections.abc import Iterable, Sequence
from itertools import combinations
from random import Random

import msgspec
from hypothesis import given as sampled
from hypothesis import settings
from hypothesis import strategies as st

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId
from libs.common.state.cluster import Job
from services.scheduler.placement.choose import NO_PLACEMENT, choose_for
from services.scheduler.placement.resource_request import request_of
from services.scheduler.preemption.choose import lost_ns, room_for
from services.scheduler.state.state import State
from tests.given import SECOND_NS, given, member, placed, registered, started, tell, waiting

SEEDS = st.integers(0, 1 << 32)
NODES = ("a", "b", "c")
GPUS = 4
NOW_NS = 100 * SECOND_NS


def cluster(chance: Random, sizes: Sequence[int]) -> State:
    """Nodes full of jobs of these sizes, some of which may be preempted, each at another time; and
    now and then a gang over two nodes.
    """
    history: list[AnyFact] = [registered(node, gpus=GPUS) for node in NODES]
    free = {node: list(range(GPUS)) for node in NODES}
    if chance.random() < 0.5:
        two = chance.sample(NODES, 2)
        members = [member(node, free[node].pop(0), rank=rank) for rank, node in enumerate(two)]
        history += [
            *_job(chance, "gang", nodes=2),
            placed("gang", *members),
            *(started("gang", node) for node in two),
        ]
    for node in NODES:
        while free[node] and chance.random() < 0.95:
            gpus = min(len(free[node]), chance.choice(sizes))
            name, devices = f"{node}{len(free[node])}", [free[node].pop(0) for _ in range(gpus)]
            history += [
                *_job(chance, name, gpus=gpus),
                placed(name, member(node, *devices)),
                started(name, node),
            ]
    state = given(history)
    for job in list(state.cluster.jobs.values()):
        at = f.JobCheckpointed(job_id=job.job_id, attempt=1, node_id=next(iter(job.members)))
        tell(state.cluster, at, at_s=chance.randrange(100))
    state.pass_time(NOW_NS)
    return state


def _job(chance: Random, name: str, **asked: int) -> list[AnyFact]:
    return waiting(
        name, priority=chance.choice((10, 10, 10, 50)), preemptible=chance.random() < 0.8, **asked
    )


def head(chance: Random, state: State) -> Job:
    nodes = chance.choice((1, 1, 2))
    for fact in waiting("head", nodes=nodes, gpus=chance.randint(1, GPUS), priority=50):
        state.refresh(tell(state.cluster, fact))
    return state.cluster.jobs[JobId("head")]


def willing(state: State) -> list[Job]:
    return [
        job
        for job in state.cluster.jobs.values()
        if job.members and job.spec.preemptible and job.spec.priority < 50
    ]


def fits_without(state: State, job: Job, gone: Iterable[Job]) -> bool:
    """Whether the job fits once these have ended, by the rule that places."""
    copied = State(
        msgspec.msgpack.decode(msgspec.msgpack.encode(state.cluster), type=type(state.cluster))
    )
    for other in gone:
        for node_id in other.members:
            for fact in (
                f.JobFinished(job_id=other.job_id, attempt=1, node_id=node_id, exit_code=0),
                f.JobReleased(job_id=other.job_id, attempt=1, node_id=node_id),
            ):
                copied.refresh(tell(copied.cluster, fact))
    return choose_for(copied.capacity, request_of(job.spec), job.tenant) is not NO_PLACEMENT


@settings(max_examples=150, deadline=None)
@sampled(SEEDS)
def test_room_is_found_if_there_is_any_and_no_job_ends_in_vain(seed: int) -> None:
    chance = Random(seed)
    state = cluster(chance, sizes=(1, 1, 2, 3))
    job = head(chance, state)
    room = room_for(state, job, request_of(job.spec))
    if fits_without(state, job, ()):
        assert room is None
        return
    assert (room is not None) == fits_without(state, job, willing(state))
    if room is not None:
        assert all(victim in willing(state) for victim in room.victims)
        assert fits_without(state, job, room.victims)
        if job.spec.nodes == 1:
            assert not any(
                fits_there(state, job, room.choice[0][0], rest)
                for rest in combinations(room.victims, len(room.victims) - 1)
            )


def fits_there(state: State, job: Job, node_id: str, gone: Iterable[Job]) -> bool:
    free = GPUS - sum(
        len(other.members[node_id].gpus)
        for other in state.cluster.jobs.values()
        if node_id in other.members
    )  # type: ignore[index]
    return (
        free + sum(len(other.members[node_id].gpus) for other in gone if node_id in other.members)
        >= job.spec.gpus
    )  # type: ignore[index]


@settings(max_examples=100, deadline=None)
@sampled(SEEDS)
def test_among_equal_jobs_those_that_lose_least_are_preempted(seed: int) -> None:
    chance = Random(seed)
    state = cluster(chance, sizes=(1,))
    job = head(chance, state)
    room = room_for(state, job, request_of(job.spec))
    if (
        room is None
        or job.spec.nodes > 1
        or any(len(other.members) > 1 for other in willing(state))
    ):
        return
    cost = sum(lost_ns(victim, NOW_NS) for victim in room.victims)
    choices = [
        sum(lost_ns(other, NOW_NS) for other in some)
        for node in NODES
        for count in range(1, GPUS + 1)
        for some in combinations(
            [other for other in willing(state) if node in other.members], count
        )
        if fits_there(state, job, node, some)
    ]
    assert cost == min(choices)
