"""Preemptible jobs in one run.

A pure function of the seed with its own dice, so that runs without such jobs stay as they were.
"""

import random
from typing import Any, Final

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import JobSpec
from tests.sim.behaviour import Behaviour
from tests.sim.machine import SAVE
from tests.sim.orders import TimedFacts

PART_OF_SEEDS: Final = 0.6
PART_OF_JOBS: Final = 0.6


def with_preemption(seed: int, acts: TimedFacts) -> TimedFacts:
    """Return the same acts; in most seeds some jobs may be preempted."""
    dice = random.Random(f"preemption {seed}")
    if dice.random() >= PART_OF_SEEDS:
        return acts
    return [
        (
            at_s,
            tuple(
                replace(fact, spec=_yielding(dice, fact.spec))
                if isinstance(fact, f.JobSubmitted)
                else fact
                for fact in facts
            ),
        )
        for at_s, facts in acts
    ]


def _yielding(dice: random.Random, spec: JobSpec) -> JobSpec:
    if dice.random() >= PART_OF_JOBS:
        return spec
    words: dict[str, Any] = {
        "preemptible": True,
        "requeue": True,
        "min_run_s": dice.choice((0, 0, 2, 5)),
    }
    if dice.random() < 0.6:
        saves = replace(Behaviour.parse(spec.command), saves_ms=dice.choice((1, 300, 2_500, 9_000)))
        words |= {
            "command": saves.command(),
            "checkpoint_signal": SAVE,
            "checkpoint_grace_s": dice.choice((1, 4)),
        }
    return replace(spec, priority=min(spec.priority, dice.choice((10, 40, 90))), **words)
