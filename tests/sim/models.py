"""Model users of one run: they deploy, scale and redeploy models during the storm, and undeploy
them long after.

A pure function of the seed with its own dice, so that runs without models stay as they were.
Replicas are small and have precedence over all jobs. Each therefore finds its place once faults
stop, whatever else waits.
"""

import random
from typing import Final

from libs.common import facts as f
from libs.common.model import PRIORITY_MAX
from libs.common.model_spec import ModelSpec
from tests.sim.behaviour import Behaviour

PART_OF_SEEDS: Final = 0.35
SHARE: Final = 25
FOR_EVER_MS: Final = 10_000_000
# After the storm: longer than the longest job, a lease, its margin and the longest wait after a few
# crashes.
CALM_S: Final = 55.0
# A server that crashes at once, each time.
BAD: Final = "bad"

TimedFacts = list[tuple[float, tuple[f.AnyFact, ...]]]


def model_acts(seed: int, storm_s: float) -> TimedFacts:
    """Return (at, facts); empty for most seeds."""
    dice = random.Random(f"models {seed}")
    if dice.random() >= PART_OF_SEEDS:
        return []
    acts = (
        _life(dice, "alpha", storm_s) + _life(dice, "beta", storm_s)
        if dice.random() < 0.5
        else _life(dice, "alpha", storm_s)
    )
    if dice.random() < 0.4:
        bad = Behaviour(dice.randint(20, 900), 3, ready_ms=dice.choice((0, 5_000)))
        acts += [
            (dice.uniform(0.2, 5.0), (_deployment(BAD, 1, bad),)),
            (storm_s + CALM_S, (f.ModelUndeployed(name=BAD),)),
        ]
    return acts


def _life(dice: random.Random, name: str, storm_s: float) -> TimedFacts:
    acts: TimedFacts = [
        (dice.uniform(0.1, 4.0), (_deployment(name, dice.randint(1, 3), _server(dice)),))
    ]
    for _ in range(dice.randint(0, 3)):
        act = f.ModelScaled(name=name, replicas=dice.randint(1, 3)) if dice.random() < 0.4 else None
        acts.append(
            (
                dice.uniform(5.0, 22.0),
                (act or _deployment(name, dice.randint(1, 3), _server(dice)),),
            )
        )
    return [*acts, (storm_s + CALM_S, (f.ModelUndeployed(name=name),))]


def _server(dice: random.Random) -> Behaviour:
    return Behaviour(FOR_EVER_MS, 0, dice.random() < 0.2, ready_ms=dice.randint(10, 3_000))


def _deployment(name: str, replicas: int, behaviour: Behaviour) -> f.ModelDeployed:
    spec = ModelSpec(
        command=behaviour.command(),
        replicas=replicas,
        gpu_share=SHARE,
        priority=PRIORITY_MAX,
        startup_timeout_s=8,
        start_s=10,
        grace_s=1,
    )
    return f.ModelDeployed(name=name, spec=spec, user="u")
