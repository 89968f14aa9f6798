"""Time of a decision that places a gang of 8 nodes with 8 GPUs each by topology, on 10,240 GPUs.

The cluster is partly in use: a quarter of the nodes can serve no gang, and gangs hold most others.
After each decision another gang ends, so that racks and spines fill and empty. `decision.py`
defines a decision.
"""

import random
from collections import deque
from typing import Final

from bench.cluster import QUICK
from bench.decision import SchedulerRig, Took, count, machine, tell, timed
from libs.common import facts as f
from libs.common.model import JobId, JobSpec

DECISIONS: Final = 2_000 if QUICK else 200_000
NODES: Final = 1_280
GANG_NODES: Final = 8
# Part of the nodes that have one device in use and cannot serve a gang.
BROKEN: Final = 0.25


class Steady:
    """Two thirds of the whole nodes are held by gangs."""

    def __init__(self) -> None:
        dice = random.Random(1)
        self.rig = SchedulerRig([machine(number) for number in range(NODES)])
        self.gangs: deque[f.JobPlaced] = deque()
        self.dice = dice
        self.number = 0
        for number in sorted(dice.sample(range(NODES), int(BROKEN * NODES))):
            self._submit(
                JobSpec(
                    command=("true",), placement="first_fit", node_list=(machine(number).node_id,)
                )
            )
            placed, _ = self.rig.decide()
            assert placed is not None
        for _ in range(int(NODES * (1 - BROKEN) * 2 / 3) // GANG_NODES):
            self._place()

    def _submit(self, spec: JobSpec) -> None:
        job_id = JobId(f"j{self.number}")
        self.number += 1
        for fact in (
            f.JobSubmitted(job_id=job_id, spec=spec),
            f.JobAdmitted(job_id=job_id),
            f.JobQueued(job_id=job_id),
        ):
            self.rig.say(fact)

    def _place(self) -> Took:
        self._submit(JobSpec(command=("true",), nodes=GANG_NODES, gpus=8, placement="topology"))
        placed, took = self.rig.decide()
        assert placed is not None and len(placed.members) == GANG_NODES
        self.gangs.append(placed)
        return took

    def step(self) -> Took:
        took = self._place()
        self.gangs.rotate(self.dice.randrange(len(self.gangs)))
        self.rig.end(self.gangs.popleft())
        self.rig.rest()
        return took


def main() -> None:
    steady = Steady()
    setting = {
        "gpus": NODES * 8,
        "nodes": NODES,
        "gang": f"{GANG_NODES} x 8",
        "strategy": "topology",
    }
    tell("", timed(DECISIONS, steady.rig, steady.step), steady.rig, **setting)
    count("", steady.rig, steady.step, **setting)


if __name__ == "__main__":
    main()
