"""The proof of a wait is one: what it names starts the job when it is done to a copy of the
cluster, and nothing cheaper on the list does.

Both are tried here by other means than the proof's own: facts are folded into a copy, a new state
decides.
"""

from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, assume, settings
from hypothesis import given as draw
from hypothesis import strategies as st

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import Array, Gpu, GpuId, JobId, NodeId, TenantId
from libs.common.state.cluster import Job
from libs.common.transport import snapshot
from services.scheduler.decide.decide import decide
from services.scheduler.explain.change import Change
from services.scheduler.explain.changes import KINDS, cheapest
from services.scheduler.explain.devices_back import ended
from services.scheduler.explain.trial import copied, ending, prepare
from services.scheduler.questions.what_if import WhatIfAsk, what_if
from services.scheduler.state.state import State
from tests.given import given, spec, tell, waiting

J = JobId("j")
TENANTS = ("red", "blue")
MODELS = ("H100", "A100")


@dataclass
class Asked:
    """Some job, by its fields."""

    tenant: str
    fields: dict[str, Any]


def requests() -> st.SearchStrategy[Asked]:
    fields = st.fixed_dictionaries(
        {
            "nodes": st.sampled_from((1, 1, 1, 2, 3)),
            "gpus": st.integers(1, 4),
            "time_limit_s": st.sampled_from((0, 60, 4_000)),
        },
        optional={
            "gpu_share": st.sampled_from((30, 50)),
            "priority": st.sampled_from((10, 50, 90)),
            "rack": st.just("required"),
            "numa": st.just("required"),
            "model": st.sampled_from((("H100",), ("A100",))),
            "node_labels": st.just({"disk": "nvme"}),
            "cpus_milli": st.sampled_from((1_000, 3_000)),
            "preemptible": st.just(True),
            "nodes_max": st.just(4),
            "array": st.just(Array(((0, 2, 1),), 2)),
            "hold": st.sampled_from((False, False, False, True)),
        },
    )
    return st.builds(Asked, st.sampled_from(TENANTS), fields)


NODES = st.lists(
    st.tuples(st.integers(2, 4), st.sampled_from(MODELS), st.sampled_from("xy"), st.booleans()),
    min_size=1,
    max_size=4,
)
AWAY = st.lists(st.integers(0, 3), max_size=2)


def node(number: int, gpus: int, model: str, rack: str, labelled: bool) -> f.NodeRegistered:
    name = f"n{number}"
    devices = tuple(
        Gpu(
            uuid=GpuId(f"{name}-{i}"),
            index=i,
            vendor="nvidia",
            model=model,
            memory_bytes=80 << 30,
            numa=i // 2,
        )
        for i in range(gpus)
    )
    labels = {"disk": "nvme"} if labelled else {}
    return f.NodeRegistered(
        NodeId(name),
        1,
        name,
        devices,
        cpus_milli=4_000,
        memory_bytes=1 << 30,
        labels=labels,
        rack=rack,
        sockets=(0, 1),
    )


def world(
    nodes: list[tuple[int, str, str, bool]],
    limit: int,
    away: list[int],
    lost: list[int],
    jobs: list[Asked],
    last: Asked,
) -> State:
    """A cluster in which all that could be decided is decided; `j` came last."""
    history: list[AnyFact] = [
        f.TenantSet(tenant=TenantId("red"), max_gpu_share=limit),
        *(node(n, *each) for n, each in enumerate(nodes)),
    ]
    history += [
        f.GpuFaulted(NodeId(f"n{n}"), GpuId(f"n{n}-0"), "offline", "xid")
        for n in away
        if n < len(nodes)
    ]
    state = given(history)
    for number, asked in enumerate(jobs):
        submit(state, JobId(f"k{number}"), asked)
    for n in lost:
        if n < len(nodes):
            told(state, f.NodeLost(NodeId(f"n{n}"), 1))
    submit(state, J, last)
    return state


def told(state: State, *facts: AnyFact) -> None:
    """Folded by who may say it, then decided; who is preempted ends at once."""
    told_only(state, *facts)
    while found := decide(state, 0):
        state.apply_own(found, 0)
        for fact in found:
            if isinstance(fact, f.JobPreempted):
                told_only(state, *ending(state.cluster.jobs[fact.job_id]))


def told_only(state: State, *facts: AnyFact) -> None:
    for fact in facts:
        state.refresh(tell(state.cluster, fact, seq=len(state.cluster.jobs) + 100))


def submit(state: State, job_id: JobId, asked: Asked) -> None:
    told(state, *waiting(job_id, tenant=asked.tenant, **asked.fields)[:2])


def really_starts(state: State, change: Change) -> bool:
    """By a state of its own, from a copy of what is folded."""
    cluster = snapshot.copy(state.cluster)
    for fact in change.facts:
        tell(cluster, fact, seq=1 << 40)
    other = State(cluster)
    other.begin(cluster.epoch, 0)
    placed: list[JobId] = []
    while found := decide(other, 0):
        other.apply_own(found, 0)
        for placement in (fact for fact in found if isinstance(fact, f.JobPlaced)):
            placed += [placement.job_id, other.cluster.jobs[placement.job_id].array]
        for fact in found:
            if isinstance(fact, f.JobPreempted):
                told_only(other, *ending(other.cluster.jobs[fact.job_id]))
    return change.job_id in placed


WORLDS = st.builds(
    world,
    NODES,
    st.sampled_from((0, 0, 100, 300)),
    AWAY,
    st.lists(st.integers(0, 3), max_size=1),
    st.lists(requests(), max_size=8),
    requests(),
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@draw(WORLDS)
def test_each_change_that_is_named_starts_the_job_and_nothing_cheaper_does(state: State) -> None:
    job = state.cluster.jobs[J]
    assume(job.state == "queued")
    prepare(state)
    named = cheapest(state, job, copied)
    assert all(really_starts(state, change) for change in named)
    for kind in KINDS:
        of_the_kind = list(kind(state, job))
        first = next((change for change in of_the_kind if really_starts(state, change)), None)
        assert [change for change in named if change in of_the_kind] == (
            [first] if first is not None else []
        )


@settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@draw(WORLDS)
def test_a_job_whose_end_would_help_is_not_left_out(state: State) -> None:
    """Try every running job, not only those that the explanation considers."""
    job = state.cluster.jobs[J]
    assume(job.state == "queued" and not job.order.held)
    tried = [change.facts[0] for change in ended(state, job)]
    for other in list(state.cluster.jobs.values()):
        if (
            other.members
            and other.array != J
            and f.CancelRequested(job_id=other.job_id) not in tried
        ):
            facts = (f.CancelRequested(job_id=other.job_id), *ending(other))
            assert not really_starts(state, Change("", facts, J))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@draw(WORLDS, requests())
def test_what_if_says_what_happens_when_it_is_submitted(state: State, asked: Asked) -> None:
    other = State(snapshot.copy(state.cluster))
    other.begin(state.epoch, 0)
    found = what_if(other, WhatIfAsk(spec(**asked.fields), TenantId(asked.tenant)))
    submit(state, JobId("real"), asked)
    begun = [
        state.cluster.jobs[name]
        for name in (JobId("real"), JobId("real_0"))
        if name in state.cluster.jobs
    ]
    assert found["would_start"] == any(job.members for job in begun)
    assert [each["node_id"] for each in found["placement"]] == [
        node for job in begun for node in by_rank(job)
    ]


def by_rank(job: Job) -> list[NodeId]:
    return [
        member.node_id for member in sorted(job.members.values(), key=lambda member: member.rank)
    ]
