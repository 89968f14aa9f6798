"""Random facts about prices, diagnoses, the use of models and devices, and idle devices: those that
writers could record now, and invalid ones.
"""

from collections.abc import Iterator
from random import Random

from libs.common import facts as f
from libs.common.facts import AnyFact, DeviceUse
from libs.common.life import job_life
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Cluster, Job
from libs.common.state.job import ended_members, idle_since_ns
from tests.property.fact_values import KEYS, TENANTS

NAMES = ("h100", "any")
# No member of a walk becomes idle at this time.
NOT_NOW_NS = 2
ACTIONS = ("off", "warn", "checkpoint", "release")


def diagnoses(cluster: Cluster) -> Iterator[AnyFact]:
    for job in cluster.jobs.values():
        if job.state in job_life.ON_NODES:
            yield f.JobDiagnosed(
                job_id=job.job_id, attempt=job.attempt, verdict="stuck", sentence="rank 1 waits"
            )


def of_model(job: Job, chance: Random) -> f.ModelUse:
    return f.ModelUse(
        tenant=chance.choice(TENANTS),
        user="ada",
        key_id=chance.choice(KEYS),
        owner=job.tenant,
        model="m",
        job_id=job.job_id,
        attempt=max(1, job.attempt),
        share_ms=chance.randrange(99),
    )


def by_gateways(chance: Random) -> Iterator[AnyFact]:
    yield f.PriceSet(
        name=chance.choice(NAMES),
        micros_per_hour=chance.randrange(9),
        currency=chance.choice(("EUR", "USD")),
        removed=chance.random() < 0.2,
    )
    yield f.IdlePolicySet(
        tenant=chance.choice(TENANTS), action=chance.choice(ACTIONS), idle_s=chance.randrange(99)
    )


def use(chance: Random) -> DeviceUse | None:
    """Return the use that an agent reports with the end of a member."""
    if chance.random() < 0.3:
        return None
    sampled_ms = chance.randrange(200)
    return DeviceUse(
        devices=chance.randrange(4),
        used=chance.randrange(3),
        sampled_ms=sampled_ms,
        busy_ms=chance.randrange(sampled_ms + 1),
        peak_percent=chance.randrange(101),
        energy_mj=chance.randrange(-1, 99),
    )


def of_member(job_id: JobId, attempt: int, node_id: NodeId, chance: Random) -> Iterator[AnyFact]:
    idle_ms = chance.choice((0, 60_000, 60_000))
    yield f.JobIdleSeen(job_id=job_id, attempt=attempt, node_id=node_id, idle_ms=idle_ms)


def by_scheduler(cluster: Cluster, chance: Random) -> Iterator[AnyFact]:
    """A warning of each job that runs; one that is not idle now was idle when it was decided."""
    for job in cluster.jobs.values():
        if job.state in job_life.ON_NODES:
            yield f.JobIdleWarned(
                job_id=job.job_id,
                attempt=job.attempt,
                idle_s=1,
                action=chance.choice(ACTIONS),
                since_ns=idle_since_ns(job) or NOT_NOW_NS,
                ends_ns=chance.randrange(9),
                policy_ns=chance.randrange(9),
                ended=ended_members(job),
            )


def wild(word: str, number: int, job_id: JobId, node_id: NodeId) -> tuple[AnyFact, ...]:
    return (
        f.PriceSet(name=word, micros_per_hour=number, currency=word),
        f.IdlePolicySet(tenant=TENANTS[0], action=word, idle_s=number, grace_s=number),
        f.JobIdleSeen(job_id=job_id, attempt=number, node_id=node_id, idle_ms=number),
        f.JobIdleWarned(
            job_id=job_id,
            attempt=number,
            idle_s=number,
            action=word,
            since_ns=number,
            ends_ns=number,
            policy_ns=number,
            ended=number,
        ),
        f.JobFinished(
            job_id=job_id,
            attempt=1,
            node_id=node_id,
            exit_code=0,
            use=DeviceUse(*(number for _ in range(8)), shared=True),
        ),
    )
