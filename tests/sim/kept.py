"""Users of one run who keep data of their models on nodes, change their minds, and drop it.

A pure function of the seed with its own dice, so that all other choices of a seed stay as they
were. The models are those of `models.py`; a request for a model that a run does not have has no
effect on nodes.
"""

import random
from typing import Final

from libs.common import facts as f
from libs.common.life import kept_life
from tests.sim.models import TimedFacts

PART_OF_SEEDS: Final = 0.6
MODEL: Final = "alpha"
TIERS: Final = (kept_life.HOST, kept_life.HOST, kept_life.STANDBY, kept_life.ARTEFACT)
STANDBY_BYTES: Final = 1 << 30


def kept_acts(seed: int) -> TimedFacts:
    """Return (at, facts); empty for some seeds."""
    dice = random.Random(f"kept {seed}")
    if dice.random() >= PART_OF_SEEDS:
        return []
    acts: TimedFacts = []
    for tier in dice.sample(TIERS, dice.randint(1, 3)):
        at_s = dice.uniform(0.1, 8.0)
        acts.append((at_s, (_request(dice, tier),)))
        if dice.random() < 0.3:
            acts.append((at_s + dice.uniform(0.0, 6.0), (_request(dice, tier),)))
        if dice.random() < 0.4:
            dropped = f.ModelKeepDropped(model=MODEL, tier=tier)
            acts.append((at_s + dice.uniform(0.0, 12.0), (dropped,)))
    return acts


def _request(dice: random.Random, tier: str) -> f.ModelKeepRequested:
    return f.ModelKeepRequested(
        model=MODEL,
        tier=tier,
        nodes=0 if tier == kept_life.STANDBY else dice.randint(0, 3),
        weights="/weights",
        size_bytes=STANDBY_BYTES if tier == kept_life.STANDBY else 0,
        user="u",
    )
