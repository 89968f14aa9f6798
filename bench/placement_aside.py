"""Time of a decision while jobs that let others pass stand in front: their number must hardly
matter.

Such jobs belong to a tenant at its limit, or can never fit, each with another shape. The same
cluster without them runs in turns with it. A second part compares as many jobs of four tenants with
jobs of one tenant each, of which the scheduler looks past up to 100. A third part measures the cost
of a joining node, after which the scheduler tries all jobs that could never fit again.

The cluster has 1,024 GPUs and 1,000 other waiting jobs, in steady state as in `placement_whole.py`.
`decision.py` defines a decision.
"""

import time
from statistics import median
from typing import Final

from bench.cluster import QUICK, say
from bench.decision import Took, machine, tell
from bench.placement_whole import Steady
from libs.common import facts as f
from libs.common.model import JobId, JobSpec, TenantId
from libs.common.process.service import freeze_collector

TURNS: Final = 5
DECISIONS: Final = 200 if QUICK else 2_000
GPUS: Final = 1_024
WAITING: Final = 1_000
JOINS: Final = 9
ASIDE: Final = 1_000 if QUICK else 10_000
GREEDY, LARGE = TenantId("greedy"), TenantId("large")


def steady(at_limit: int = 0, impossible: int = 0) -> Steady:
    """Return a steady state with this many shapes before all others."""
    made = Steady(GPUS, WAITING)
    made.rig.say(f.TenantSet(tenant=GREEDY, max_gpu_share=100))
    for number in range(at_limit + impossible):
        spec = JobSpec(
            command=("true",),
            gpus=2 if number < at_limit else 16,
            cpus_milli=number + 1,
            priority=100,
        )
        job_id = JobId(f"aside{number}")
        tenant = GREEDY if number < at_limit else LARGE
        for fact in (
            f.JobSubmitted(job_id=job_id, spec=spec, tenant=tenant),
            f.JobAdmitted(job_id=job_id),
            f.JobQueued(job_id=job_id),
        ):
            made.rig.say(fact)
    return made


def join(world: Steady, number: int) -> float:
    """Return the milliseconds until a new node is used."""
    began = time.perf_counter()
    world.rig.say(machine(number))
    world.rig.decide()
    return (time.perf_counter() - began) * 1_000


def main() -> None:
    worlds = {
        "none_": steady(),
        "at_limit_": steady(at_limit=ASIDE),
        "impossible_": steady(impossible=ASIDE),
    }
    worlds |= {
        "few_": Steady(GPUS, ASIDE),
        "tenants_": Steady(GPUS, ASIDE, tenants=[f"t{number}" for number in range(ASIDE)]),
    }
    took: dict[str, list[Took]] = {name: [] for name in worlds}
    freeze_collector()
    for _ in range(TURNS):
        for name, world in worlds.items():
            took[name] += [world.step() for _ in range(DECISIONS)]
    medians = {
        name: tell(name, took[name], worlds[name].rig, gpus=GPUS, many=ASIDE) for name in worlds
    }
    for name, beside in (("at_limit_", "none_"), ("impossible_", "none_"), ("tenants_", "few_")):
        say(
            f"{name}growth",
            medians[name] / medians[beside],
            "ratio",
            len(took[name]),
            of=f"p50 with {ASIDE} of them to p50 without",
        )
    for name, world in worlds.items():
        say(
            f"{name}join_ms",
            median(join(world, GPUS // 8 + number) for number in range(JOINS)),
            "ms",
            JOINS,
            nodes=GPUS // 8,
        )


if __name__ == "__main__":
    main()
