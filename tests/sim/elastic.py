"""Gangs of more than one size in one run.

A pure function of the seed with its own dice, so that runs without such gangs stay as they were.
"""

import random
from typing import Any, Final

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import WHOLE_GPU, JobSpec
from tests.sim.behaviour import Behaviour
from tests.sim.machine import SAVE
from tests.sim.orders import TimedFacts

PART_OF_SEEDS: Final = 0.5
PART_OF_JOBS: Final = 0.5
# For gangs that are started again with more nodes.
GROW: Final = 0.6


def with_sizes(seed: int, acts: TimedFacts) -> TimedFacts:
    """Return the same acts; in half of the seeds some jobs on whole devices may take more nodes."""
    dice = random.Random(f"sizes {seed}")
    if dice.random() >= PART_OF_SEEDS:
        return acts
    return [
        (
            at_s,
            tuple(
                replace(fact, spec=_sized(dice, fact.spec))
                if isinstance(fact, f.JobSubmitted)
                else fact
                for fact in facts
            ),
        )
        for at_s, facts in acts
    ]


def _sized(dice: random.Random, spec: JobSpec) -> JobSpec:
    if spec.gpu_share < WHOLE_GPU or dice.random() >= PART_OF_JOBS:
        return spec
    words: dict[str, Any] = {"nodes_max": spec.nodes + dice.choice((1, 1, 2))}
    if dice.random() < GROW:
        saves = replace(Behaviour.parse(spec.command), saves_ms=dice.choice((1, 300)))
        words |= {
            "preemptible": True,
            "requeue": True,
            "command": saves.command(),
            "checkpoint_signal": SAVE,
            "checkpoint_grace_s": 4,
        }
    return replace(spec, **words)
