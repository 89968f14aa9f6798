"""The workload of one run: jobs of every kind, cancels, arrays, changing tenant limits and models.

A pure function of the seed.

Every fifth job ignores its lease. Every job can end, because none asks for more than the cluster or
its tenant's lowest limit allows.
"""

import random
from typing import Final

import msgspec

from libs.common import facts as f
from libs.common.model import CONTINUE, WHOLE_GPU, JobId, JobSpec, TenantId
from tests.sim.allocations import allocation_acts
from tests.sim.arrays import array_acts
from tests.sim.behaviour import Behaviour
from tests.sim.elastic import with_sizes
from tests.sim.kept import kept_acts
from tests.sim.models import model_acts
from tests.sim.orders import with_orders
from tests.sim.pools import with_pools
from tests.sim.preempting import with_preemption
from tests.sim.preflights import with_preflights
from tests.sim.turns import turn_acts

JOBS_MIN: Final = 20
JOBS_MAX: Final = 28
SUBMIT_WITHIN_S: Final = 14.0
# Longer than a lease, its margin and a restart together: such a job outlives its own node's silence
# if nothing ends it.
LONG_S: Final = 30.0
GOES_ON: Final = 0.2
SHARES: Final = (25, 30, 50, 60)
STRATEGIES: Final = (
    "first_fit",
    "best_fit",
    "worst_fit",
    "round_robin",
    "least_loaded",
    "topology",
)
# Ways to ask for a part of a device. The last two are instances.
PARTS: Final[tuple[dict[str, object], ...]] = (
    {},
    {},
    {"isolation": "mps"},
    {"isolation": "time_slice"},
    {"gpu_share": WHOLE_GPU, "gpu_memory_bytes": 30 << 30},
    {"gpu_share": WHOLE_GPU, "mig_profile": "1g.10gb"},
    {"gpu_share": WHOLE_GPU, "mig_profile": "3g.40gb"},
)
# Frequency with which an administrator lets a tenant share devices.
SHARING_PART: Final = 0.4


class Act(msgspec.Struct, frozen=True, order=True):
    """Facts that the gateway records in one commit at a virtual time."""

    at_s: float
    number: int
    facts: tuple[f.AnyFact, ...]


class Shape(msgspec.Struct, frozen=True):
    """The cluster for which jobs are made: the GPUs of each node."""

    gpus: tuple[int, ...]

    @property
    def limit_min(self) -> int:
        """Hundredths of a GPU that the largest job may ask for."""
        return 400


def workload(seed: int, shape: Shape, storm_s: float) -> list[Act]:
    """Return the acts in order of time."""
    dice, going_on = random.Random(f"workload {seed}"), random.Random(f"control loss {seed}")
    acts = [(0.0, _tenants(dice, f"{seed}", shape, True))]
    acts += [
        (dice.uniform(2.0, SUBMIT_WITHIN_S), _tenants(dice, f"{seed} {change}", shape, False))
        for change in range(dice.randint(0, 3))
    ]
    for number in range(dice.randint(JOBS_MIN, JOBS_MAX)):
        at_s = dice.choice((0.1, 0.1, dice.uniform(0.1, SUBMIT_WITHIN_S)))
        job_id = JobId(f"job-{number}")
        tenant = TenantId(dice.choice(("red", "blue", "default")))
        spec = _spec(dice, shape)
        spec = _placed_somewhere(random.Random(f"placement {seed} {number}"), spec)
        if going_on.random() < GOES_ON:
            spec = msgspec.structs.replace(spec, on_control_loss=CONTINUE)
        acts.append((at_s, (f.JobSubmitted(job_id=job_id, spec=spec, tenant=tenant, user="u"),)))
        if dice.random() < 0.15:
            acts.append((at_s + dice.uniform(0.0, 8.0), (_cancel(dice, job_id),)))
    acts = with_preflights(seed, acts, shape.gpus)
    acts = (
        with_pools(seed, with_sizes(seed, with_preemption(seed, with_orders(seed, acts, storm_s))))
        + array_acts(seed)
        + model_acts(seed, storm_s)
        + kept_acts(seed)
        + allocation_acts(seed)
        + turn_acts(seed, storm_s)
    )
    ordered = sorted((at_s, index) for index, (at_s, _) in enumerate(acts))
    return [Act(at_s, number, acts[index][1]) for number, (at_s, index) in enumerate(ordered)]


def _tenants(dice: random.Random, seed: str, shape: Shape, first: bool) -> tuple[f.AnyFact, ...]:
    limits = {"red": (shape.limit_min, 600, 900), "blue": (shape.limit_min, 500, 0)}
    names = list(limits) if first else [dice.choice(list(limits))]
    shares = random.Random(
        f"shares {seed}"
    )  # of its own: the other choices of a seed stay as they were
    return tuple(
        f.TenantSet(
            tenant=TenantId(name),
            max_gpu_share=dice.choice(limits[name]),
            shares_devices=shares.random() < SHARING_PART,
        )
        for name in names
    )


def _spec(dice: random.Random, shape: Shape) -> JobSpec:
    """A gang over several nodes, a fraction of a device, or some whole ones."""
    kind = dice.random()
    nodes, gpus, share = 1, dice.choice((1, 1, 2)), 100
    if kind < 0.3:
        nodes = dice.choice((2, 2, 3))
        gpus = 1 if nodes == 3 else dice.choice((1, 2))
    elif kind < 0.6:
        gpus, share = 1, dice.choice(SHARES)
    assert nodes * gpus * share <= shape.limit_min
    behaviour = _behaviour(dice)
    slow = behaviour.duration_ms > 5_000
    return JobSpec(
        command=behaviour.command(),
        nodes=nodes,
        gpus=gpus,
        gpu_share=share,
        priority=dice.choice((10, 50, 50, 90)),
        time_limit_s=4 if slow and dice.random() < 0.4 else 0,
        start_s=dice.choice((10, 30)),
        grace_s=dice.choice((0, 1, 3)),
        retries=dice.choice((0, 0, 1, 2)),
        requeue=dice.random() < 0.8,
    )


def _placed_somewhere(dice: random.Random, spec: JobSpec) -> JobSpec:
    """Some say where they run and what of the host they need; of what was a fraction, some say it
    in memory, or as a MIG instance.
    """
    words: dict[str, object] = {}
    if dice.random() < 0.3:
        words |= {
            "cpus_milli": dice.choice((500, 1_000, 3_000)),
            "memory_bytes": dice.choice((0, 1 << 30)),
        }
    if spec.gpu_share < WHOLE_GPU:
        words |= dice.choice(PARTS)
    if dice.random() < 0.3:
        words |= {"placement": dice.choice(STRATEGIES)}
    if dice.random() < 0.2:
        words |= {"allow_cross_numa": False, "rack": dice.choice(("preferred", "none"))}
    if dice.random() < 0.3:
        words |= {"labels": {"app": dice.choice("ab")}}
    if dice.random() < 0.1:
        words |= {"anti_affinity": {"app": dice.choice("ab")}}
    return msgspec.structs.replace(spec, **words)


def _behaviour(dice: random.Random) -> Behaviour:
    duration_ms = int(
        1e3
        * dice.choice(
            (
                dice.uniform(0.02, 1.0),
                dice.uniform(1.0, 4.0),
                dice.uniform(4.0, 9.0),
                dice.uniform(9.0, LONG_S),
            )
        )
    )
    return Behaviour(duration_ms, dice.choice((0, 0, 0, 0, 1, 7)), dice.random() < 0.25)


def _cancel(dice: random.Random, job_id: JobId) -> f.CancelRequested:
    return f.CancelRequested(
        job_id=job_id, signal=dice.choice((15, 15, 9)), grace_s=dice.choice((0, 1, 2)), user="u"
    )
