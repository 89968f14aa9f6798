"""Array jobs of one run: users submit arrays, cancel an array or one element, and let a job depend
on a whole array.

A pure function of the seed with its own dice, so that runs without arrays stay as they were.
"""

import random
from typing import Final

from libs.common import arrays
from libs.common import facts as f
from libs.common.model import JobId, JobSpec
from libs.common.state.ordering import AFTER
from tests.sim.behaviour import Behaviour

PART_OF_SEEDS: Final = 0.35
ARRAYS_MAX: Final = 2
ELEMENTS_MAX: Final = 12

TimedFacts = list[tuple[float, tuple[f.AnyFact, ...]]]


def array_acts(seed: int) -> TimedFacts:
    """Return (at, facts); empty for most seeds."""
    dice = random.Random(f"arrays {seed}")
    if dice.random() >= PART_OF_SEEDS:
        return []
    return [
        act
        for number in range(dice.randint(1, ARRAYS_MAX))
        for act in _life(dice, JobId(f"array-{number}"))
    ]


def _life(dice: random.Random, name: JobId) -> TimedFacts:
    at_s = dice.uniform(0.1, 10.0)
    acts: TimedFacts = [(at_s, (f.JobSubmitted(job_id=name, spec=_spec(dice), user="u"),))]
    if dice.random() < 0.5:
        job_id = dice.choice((name, arrays.element_id(name, dice.randrange(ELEMENTS_MAX))))
        acts.append(
            (
                at_s + dice.uniform(0.0, 6.0),
                (f.CancelRequested(job_id=job_id, grace_s=dice.choice((0, 1)), user="u"),),
            )
        )
    if dice.random() < 0.4:
        after = JobSpec(command=Behaviour(50).command(), after=((dice.choice(AFTER), name),))
        acts.append(
            (at_s + 0.1, (f.JobSubmitted(job_id=JobId(f"{name}-after"), spec=after, user="u"),))
        )
    return acts


def _spec(dice: random.Random) -> JobSpec:
    behaviour = Behaviour(
        int(1e3 * dice.uniform(0.05, 3.0)), dice.choice((0, 0, 0, 1)), dice.random() < 0.1
    )
    at_once = dice.choice((0, 1, 2, 3))
    return JobSpec(
        command=behaviour.command(),
        gpu_share=dice.choice((50, 100)),
        grace_s=dice.choice((0, 1)),
        retries=dice.choice((0, 0, 1)),
        array=arrays.parse(
            f"{dice.choice(('', '0,'))}1-{dice.randint(3, ELEMENTS_MAX - 1)}"
            + (f"%{at_once}" if at_once else "")
        ),
    )
