"""Interactive allocations of one run: users hold devices without a command, extend some and give
some back.

A pure function of the seed with its own dice, so that runs without allocations stay as they were.
Only their time or their user ends them.
"""

import random
from typing import TYPE_CHECKING, Final

from libs.common import facts as f
from libs.common.model import Allocation, JobId, JobSpec
from tests.sim.behaviour import Behaviour
from tests.sim.models import FOR_EVER_MS, TimedFacts

if TYPE_CHECKING:
    from tests.sim.world import World

PART_OF_SEEDS: Final = 0.4
HELD_MAX: Final = 3
# Times at which a user may extend an allocation.
LOOK_S: Final = (4.0, 8.0, 13.0, 19.0)
SECOND_NS: Final = 1_000_000_000


def allocation_acts(seed: int) -> TimedFacts:
    """Return (at, facts); empty for most seeds."""
    dice = random.Random(f"allocations {seed}")
    if dice.random() >= PART_OF_SEEDS:
        return []
    acts: TimedFacts = []
    for number in range(dice.randint(1, HELD_MAX)):
        job_id, at_s = JobId(f"held-{number}"), dice.uniform(0.1, 10.0)
        acts.append((at_s, (f.JobSubmitted(job_id=job_id, spec=_spec(dice), user="u"),)))
        if dice.random() < 0.3:
            acts.append(
                (
                    at_s + dice.uniform(0.0, 9.0),
                    (f.CancelRequested(job_id=job_id, grace_s=1, user="u"),),
                )
            )
    return acts


def _spec(dice: random.Random) -> JobSpec:
    return JobSpec(
        command=Behaviour(FOR_EVER_MS, 0, dice.random() < 0.2).command(),
        gpu_share=dice.choice((25, 100)),
        priority=dice.choice((50, 90)),
        grace_s=1,
        start_s=10,
        requeue=False,
        allocation=Allocation(dice.choice((2, 5, 9, 14)), dice.choice((0, 1, 3, 60))),
    )


def extend(world: "World") -> None:
    """Extend an allocation that is held, if a gateway is alive to record it."""
    dice, gateway = (
        random.Random(f"extend {world.plan.seed} {world.loop.now:.0f}"),
        world.slots["gateway"],
    )
    held = [
        job
        for job in world.reference.jobs.values()
        if job.spec.allocation is not None and job.expires_ns and not job.stop_reason
    ]
    if held and gateway.process.alive and gateway.service is not None:
        job, by_ns = dice.choice(held), dice.randint(1, 9) * SECOND_NS
        longer = f.AllocationExtended(
            job_id=job.job_id, attempt=job.attempt, expires_ns=job.expires_ns + by_ns, user="u"
        )
        gateway.process.deliver(gateway.service.say, longer)
