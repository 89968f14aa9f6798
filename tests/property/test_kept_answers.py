"""Answers about nodes that the scheduler keeps between decisions equal newly computed ones.

They are: rankings by the workload mix, resources that jobs of lower priority could give up, the
times when nodes will serve, and which nodes are reserved for others.

Whatever happened, and whatever was asked meanwhile, a scheduler that lived through it answers as
one that has just read the cluster.
"""

from random import Random
from typing import Any

import pytest
from hypothesis import given as sampled
from hypothesis import settings
from hypothesis import strategies as st

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.life import job_life
from libs.common.model import GpuId, JobId, JobSpec, NodeId, TenantId
from libs.common.state import arrivals
from libs.common.state.cluster import Job
from libs.common.state.ordering import DEFAULT_QUEUE
from services.scheduler.decide.decide import NOTHING_OBSERVED, Observations, decide
from services.scheduler.placement import changes
from services.scheduler.placement.choose import choose_for
from services.scheduler.placement.resource_request import request_of
from services.scheduler.placement.sharing_domains import sharing_domain_of
from services.scheduler.preemption.offers import Offers
from services.scheduler.preemption.preemptible import Need
from services.scheduler.reservations.reservations import closed_to
from services.scheduler.state.state import State
from tests.given import SECOND_NS, given, registered, spec, tell, waiting

SEEDS = st.integers(0, 1 << 32)
NODES = tuple(NodeId(name) for name in ("a", "b", "c"))
GPUS = 2
TENANTS = (TenantId("red"), TenantId("blue"))
STEPS = 40
# Who asks for room: one of a higher priority, and one that takes turns with the others.
NEEDS = (Need(90), Need(10, DEFAULT_QUEUE), Need(1, "", (JobId("j1"), JobId("j2"))))
ASKED: tuple[JobSpec, ...] = (
    spec(gpus=2),
    spec(gpu_share=50, time_limit_s=10),
    spec(gpus=2, gpu_share=30, isolation="mps"),
    spec(cpus_milli=3_000),
    spec(gpus=2, nodes=2),
    spec(anti_affinity={"app": "db"}, reservation="a"),
)
SUBMITTED: tuple[dict[str, Any], ...] = (
    {"gpus": 1, "cpus_milli": 4_000},
    {"gpus": 2},
    {"gpu_share": 50},
    {"gpu_share": 50},
    {"gpu_share": 50, "isolation": "mps"},
    {"nodes": 2},
    {"labels": {"app": "db"}},
)


class Walk:
    """A cluster to which anything happens, one thing after the other."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.state = given(*(machine(node) for node in NODES[:2]))
        self.now_s = 0
        self.jobs = 0

    def step(self) -> None:
        happens = (
            *[self.submit] * 4,
            *[self.begin] * 2,
            self.end,
            self.save,
            self.move,
            self.say,
            self.wait,
        )
        for fact in self.chance.choice(happens)():
            self.state._follow_fact(fact, tell(self.state.cluster, fact, self.now_s, self.jobs))
        lost = self.chance.choice(list(self.state.cluster.nodes.values()))
        heard = (
            Observations(silent=((lost.node_id, lost.incarnation),))
            if self.chance.random() < 0.05
            else NOTHING_OBSERVED
        )
        for _ in range(self.chance.choice((0, 1, 10))):
            self.state.apply_own(
                decide(self.state, self.now_s * SECOND_NS, heard), self.now_s * SECOND_NS
            )

    def submit(self) -> list[AnyFact]:
        self.jobs += 1
        asked = self.chance.choice(SUBMITTED) | {
            "tenant": self.chance.choice(TENANTS),
            "time_limit_s": self.chance.choice((0, 30)),
        }
        if self.chance.random() < 0.8:
            asked |= {"preemptible": True, "priority": 10, "min_run_s": self.chance.choice((0, 20))}
        return waiting(f"j{self.jobs}", **asked)

    def one(self) -> list[tuple[JobId, int, NodeId]]:
        """A member that is on a node, if there is any."""
        jobs = [job for job in self.state.cluster.jobs.values() if job.state in job_life.ON_NODES]
        members = [(job.job_id, job.attempt, node) for job in jobs for node in job.members]
        return [self.chance.choice(members)] if members else []

    def begin(self) -> list[AnyFact]:
        return [
            f.JobStarted(job_id=job_id, attempt=attempt, node_id=node)
            for job_id, attempt, node in self.one()
        ]

    def save(self) -> list[AnyFact]:
        return [
            f.JobCheckpointed(job_id=job_id, attempt=attempt, node_id=node)
            for job_id, attempt, node in self.one()
        ]

    def end(self) -> list[AnyFact]:
        found: list[AnyFact] = []
        for job_id, attempt, node in self.one():
            found.append(
                f.JobFinished(
                    job_id=job_id,
                    attempt=attempt,
                    node_id=node,
                    exit_code=self.chance.choice((0, 1)),
                )
            )
            found.append(f.JobReleased(job_id=job_id, attempt=attempt, node_id=node))
        return found[: self.chance.choice((1, 2, 2))]

    def move(self) -> list[AnyFact]:
        """Return a change of a random node or device.

        A node registers, its agent restarts, an operator drains it, or a device fails or recovers.
        """
        node = self.chance.choice(NODES)
        known = self.state.cluster.nodes.get(node)
        if known is None:
            return [machine(node)]
        device = GpuId(f"{node}-gpu{self.chance.randrange(GPUS)}")
        return [
            self.chance.choice(
                (
                    machine(node, known.incarnation + 1),
                    f.GpuFaulted(node_id=node, uuid=device, health="offline", reason="xid"),
                    f.GpuRecovered(node_id=node, uuid=device),
                    f.NodeRemovalRequested(node_id=node, wait=True),
                )
            )
        ]

    def say(self) -> list[AnyFact]:
        """An administrator's word on who shares devices, on whose a node is for a while, or on
        turns.
        """
        tenant, node = self.chance.choice(TENANTS), self.chance.choice(NODES)
        start_ns = (self.now_s + self.chance.randrange(20)) * SECOND_NS
        kept = f.ReservationSet(
            reservation=node,
            nodes=(node,),
            start_ns=start_ns,
            end_ns=start_ns + 20 * SECOND_NS,
            tenants=(tenant,),
        )
        shared = f.TenantSet(tenant=tenant, shares_devices=self.chance.random() < 0.5)
        turns = f.QueueSet(
            queue=DEFAULT_QUEUE, policy="priority", time_slice_s=self.chance.choice((0, 20))
        )
        return [self.chance.choice((kept, shared, turns, f.ReservationCleared(reservation=node)))]

    def wait(self) -> list[AnyFact]:
        self.now_s += self.chance.randrange(30)
        return []


def machine(node: NodeId, incarnation: int = 1) -> f.NodeRegistered:
    return registered(node, GPUS, incarnation, cpus_milli=8_000, memory_bytes=1 << 40)


def kept_answers(state: State, asked: JobSpec, tenant: TenantId) -> list[object]:
    request, sharing_domain = request_of(asked), sharing_domain_of(state.cluster, tenant)
    offers = [state.offers(request, sharing_domain, need) for need in NEEDS]
    return [
        _of(offers, state),
        state.outlook.forecast(request, sharing_domain, state.wall_ns).whens,
        *_found(state, asked, tenant),
    ]


def found_anew(state: State, asked: JobSpec, tenant: TenantId) -> list[object]:
    """By one that has read the cluster; but for how long the jobs have run, which only who lived
    through it knows.
    """
    read = State(state.cluster)
    read.wall_ns = state.wall_ns
    request, sharing_domain = request_of(asked), sharing_domain_of(state.cluster, tenant)
    offers = [
        Offers(
            request,
            sharing_domain,
            lambda job, need=need: state.preemptible.may_yield(job, need, state.now_ns),
        )
        for need in NEEDS
    ]
    for each in offers:
        each.bring_up(read.capacity, read.cluster)
    return [
        _of(offers, read),
        read.outlook.forecast(request, sharing_domain, read.wall_ns).whens,
        *_found(read, asked, tenant),
    ]


def _of(offers: list[Offers], state: State) -> list[object]:
    return [(each.of, each.members, list(each.cheapest(state.wall_ns))) for each in offers]


def _found(state: State, asked: JobSpec, tenant: TenantId) -> list[object]:
    job = Job(job_id=JobId("asks"), spec=asked, tenant=tenant, user="", seq=0)
    closed = closed_to(state, job)
    return [
        closed,
        choose_for(
            state.capacity, request_of(asked), sharing_domain_of(state.cluster, tenant), closed
        ),
    ]


@settings(max_examples=60, deadline=None)
@sampled(SEEDS)
def test_a_live_state_answers_like_one_built_from_the_cluster(seed: int) -> None:
    chance = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrivals, "FIRST", 2)  # another mix is learnt early
        patch.setattr(
            changes, "KEPT_MAX", chance.choice((4, 1_000))
        )  # who looks seldom has missed some of what changed
        walk = Walk(chance)
        for _ in range(STEPS):
            walk.step()
            walk.state.ring(walk.now_s * SECOND_NS)
            walk.state.pass_time(walk.now_s * SECOND_NS)
            asked, tenant = chance.choice(ASKED), chance.choice(TENANTS)
            assert kept_answers(walk.state, asked, tenant) == found_anew(walk.state, asked, tenant)
