"""Gangs with preflights in one run.

Which gangs ask for one is a pure function of the seed with dice of its own. Only gangs that fit on
fast machines ask: a gang that needs a slow one waits until an operator acts, and the run ends.
"""

import random
from typing import Final

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import JobSpec
from tests.sim.fabric import FAST, capacities_of
from tests.sim.orders import TimedFacts

PART_OF_SEEDS: Final = 0.5
PART_OF_GANGS: Final = 0.7


def with_preflights(seed: int, acts: TimedFacts, gpus: tuple[int, ...]) -> TimedFacts:
    """Return the same acts; in some seeds some gangs ask for a preflight. `gpus` is by machine."""
    dice = random.Random(f"preflights {seed}")
    if dice.random() >= PART_OF_SEEDS:
        return acts
    rates = capacities_of(seed, len(gpus)).values()
    fast = [count for count, rate in zip(gpus, rates, strict=True) if rate == FAST]

    def checked(spec: JobSpec) -> JobSpec:
        able = sum(1 for count in fast if count >= spec.gpus)
        wanted = spec.nodes > 1 and not spec.node_list and able >= spec.nodes
        return replace(spec, preflight=True) if wanted and dice.random() < PART_OF_GANGS else spec

    return [
        (
            at_s,
            tuple(
                replace(fact, spec=checked(fact.spec)) if isinstance(fact, f.JobSubmitted) else fact
                for fact in facts
            ),
        )
        for at_s, facts in acts
    ]
