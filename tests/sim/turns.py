"""Jobs with time slices in one run: alike, in one queue, and too many for the cluster.

A pure function of the seed.

Time slices end before the run does. A simulated job starts from zero each time, whatever it saved,
and would otherwise never end.
"""

import random
from typing import Any, Final

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import JobId, JobSpec, TenantId
from libs.common.state.ordering import POLICIES
from tests.sim.behaviour import Behaviour
from tests.sim.clock import EPOCH_NS
from tests.sim.machine import SAVE
from tests.sim.orders import SECOND_NS, TimedFacts

PART_OF_SEEDS: Final = 0.4
QUEUE: Final = "turns"
JOBS: Final = (8, 10, 12)
# Shortest time for which there are time slices.
SLICED_S: Final = 30.0
# (nodes, devices) of each job. A few of them fill a small cluster.
SIZES: Final = ((2, 1), (1, 2), (1, 2), (1, 1))


def turn_acts(seed: int, storm_s: float) -> TimedFacts:
    dice = random.Random(f"turns {seed}")
    if dice.random() >= PART_OF_SEEDS:
        return []
    queue = f.QueueSet(
        queue=QUEUE, policy=dice.choice(POLICIES), time_slice_s=dice.choice((1, 2, 4))
    )
    found: TimedFacts = [
        (0.0, (queue,)),
        (max(SLICED_S, storm_s), (replace(queue, time_slice_s=0),)),
    ]
    nodes, gpus = dice.choice(SIZES)
    for number in range(dice.choice(JOBS)):
        job = f.JobSubmitted(
            job_id=JobId(f"turn-{number}"),
            spec=_spec(dice, nodes, gpus),
            tenant=TenantId("default"),
            user="u",
        )
        found.append((dice.uniform(0.1, 6.0), (job,)))
    return found


def _spec(dice: random.Random, nodes: int, gpus: int) -> JobSpec:
    """Most save their work in time; one that says nothing of it takes no turns."""
    saves = Behaviour(int(1e3 * dice.uniform(5.0, 20.0)), saves_ms=dice.choice((1, 300, 2_500)))
    words: dict[str, Any] = (
        {"checkpoint_signal": SAVE, "checkpoint_grace_s": dice.choice((1, 4))}
        if dice.random() < 0.9
        else {}
    )
    words |= {
        "estimate_s": dice.choice((0, 5, 10)),
        "deadline_ns": dice.choice((0, EPOCH_NS + dice.randrange(60) * SECOND_NS)),
    }
    words |= {
        "priority": dice.choice((50, 50, 50, 90)),
        "min_run_s": dice.choice((0, 0, 3)),
        "grace_s": 1,
    }
    return JobSpec(
        command=saves.command(), nodes=nodes, gpus=gpus, preemptible=True, queue=QUEUE, **words
    )
