"""Time of a decision that places whole GPUs, with 100,000 jobs waiting on 10,240 GPUs and with a
tenth of that.

The cost must hardly grow with the size. Decisions run in strict order and with backfill, where most
decisions keep a reservation for a job that waits for a whole node.

The bench measures the steady state: the cluster is full, a random running job ends, and the
scheduler decides what takes its place, for at least 200,000 decisions. `decision.py` defines a
decision. Facts that other services write (the end of a job, the next submission) are folded between
the decisions, untimed.
"""

import random
from collections.abc import Sequence
from typing import Final

from bench.cluster import QUICK, say
from bench.decision import SchedulerRig, Took, count, machine, tell, timed
from libs.common import facts as f
from libs.common.model import JobId, JobSpec, TenantId

DECISIONS: Final = 10_000 if QUICK else 200_000
# (GPUs, waiting jobs, backfill). The last setting needs fewer decisions.
WAITING: Final = 20_000 if QUICK else 100_000
SETTINGS: Final = (
    ("", 10_240, WAITING, False),
    ("small_", 1_024, 10_000, False),
    ("backfill_", 10_240, WAITING, True),
)
BACKFILLED: Final = DECISIONS // 20
GPUS: Final = (1, 1, 1, 2, 4, 8)
TENANTS: Final = ("red", "blue", "green", "default")


class Steady:
    """A full cluster and its queue."""

    def __init__(
        self, gpus: int, waiting: int, backfill: bool = True, tenants: Sequence[str] = TENANTS
    ) -> None:
        self.dice = random.Random(1)
        self.tenants = tenants
        self.rig = SchedulerRig([machine(number) for number in range(gpus // 8)])
        self.running: list[f.JobPlaced] = []
        self.number = 0
        self.rig.say(f.QueueSet(queue="default", policy="priority", backfill=backfill))
        for _ in range(waiting):
            self.submit()
        while self.place():
            self.submit()

    def submit(self) -> None:
        job_id = JobId(f"j{self.number}")
        self.number += 1
        spec = JobSpec(command=("true",), gpus=self.dice.choice(GPUS))
        tenant = TenantId(self.dice.choice(self.tenants))
        for fact in (
            f.JobSubmitted(job_id=job_id, spec=spec, tenant=tenant),
            f.JobAdmitted(job_id=job_id),
            f.JobQueued(job_id=job_id),
        ):
            self.rig.say(fact)

    def place(self) -> Took | None:
        """Make one decision and return its time, or None if it placed no job."""
        placed, took = self.rig.decide()
        if placed is None:
            return None
        self.running.append(placed)
        return took

    def end_one(self) -> None:
        """End a random job and close it."""
        where = self.dice.randrange(len(self.running))
        self.running[where], self.running[-1] = self.running[-1], self.running[where]
        self.rig.end(self.running.pop())

    def step(self) -> Took:
        """End jobs until the next decision places a job, and return the time of that decision."""
        while (took := self.place()) is None:
            self.end_one()
        self.submit()
        return took


def main() -> None:
    medians = []
    for name, gpus, waiting, backfill in SETTINGS:
        steady = Steady(gpus, waiting, backfill)
        times = timed(BACKFILLED if backfill else DECISIONS, steady.rig, steady.step)
        setting = {"gpus": gpus, "nodes": gpus // 8, "waiting": waiting, "backfill": backfill}
        medians.append(tell(name, times, steady.rig, **setting))
        count(name, steady.rig, steady.step, **setting)
    say(
        "growth",
        medians[0] / medians[1],
        "ratio",
        DECISIONS,
        of="p50 at 10,240 GPUs to p50 at 1,024",
    )


if __name__ == "__main__":
    main()
