"""Time of a decision that preempts: 10,240 GPUs, all held by preemptible jobs of 1 to 8 GPUs and by
gangs.

Each decision finds that nothing fits, selects the jobs to preempt for a job of higher priority (1,
4 or 8 GPUs, or a gang of 4 x 8), and folds and encodes the result. Then the preempted jobs end, the
job is placed in the freed room and ends, and the preempted jobs are placed again. `decision.py`
defines a decision.
"""

import random
import time
from typing import Final

import msgspec

from bench.cluster import QUICK
from bench.decision import SchedulerRig, Took, machine, tell, timed
from libs.common import facts as f
from libs.common.life import job_life
from libs.common.model import JobId, JobSpec
from libs.common.state.cluster import Job
from services.scheduler.decide.decide import decide
from services.scheduler.decide.placing import place, preempt

DECISIONS: Final = 500 if QUICK else 5_000
WARM: Final = 100
NODES: Final = 1_280
HEADS: Final = ((1, 1), (1, 4), (1, 8), (4, 8))
SIZES: Final = (1, 1, 1, 1, 2, 2, 4)
ROUNDS_MAX: Final = 1_000
LOW: Final = 10
HIGH: Final = 90
_encode: Final = msgspec.msgpack.Encoder().encode


class Full:
    """Every node is held by jobs of its own or by one of a gang; each began at another time."""

    def __init__(self) -> None:
        self.dice = random.Random(1)
        self.rig = SchedulerRig([machine(number) for number in range(NODES)])
        self.number = 0
        nodes: list[str] = [machine(number).node_id for number in range(NODES)]
        self.dice.shuffle(nodes)
        for at in range(0, NODES, 2):
            if self.dice.random() < 0.1:
                self._begin(2, 8, nodes[at : at + 2])
                continue
            for node in nodes[at : at + 2]:
                left = 8
                while left:
                    gpus = min(left, self.dice.choice(SIZES))
                    self._begin(1, gpus, [node])
                    left -= gpus

    def _begin(self, count: int, gpus: int, nodes: list[str]) -> None:
        self._submit(count, gpus, LOW, node_list=tuple(nodes))
        self._settle()

    def _submit(self, nodes: int, gpus: int, priority: int, **words: object) -> JobId:
        job_id = JobId(f"j{self.number}")
        self.number += 1
        request = {
            "nodes": nodes,
            "gpus": gpus,
            "priority": priority,
            "preemptible": priority == LOW,
            **words,
        }
        spec = msgspec.convert({"command": ("true",), **request}, JobSpec)
        for fact in (
            f.JobSubmitted(job_id=job_id, spec=spec),
            f.JobAdmitted(job_id=job_id),
            f.JobQueued(job_id=job_id),
        ):
            self.rig.say(fact)
        return job_id

    def _settle(self) -> None:
        """Decide until nothing is left to decide, and start what was placed."""
        state = self.rig.state
        for _ in range(ROUNDS_MAX):
            facts = decide(state, self.rig.seq)
            if not facts:
                return
            state.apply_own(facts, self.rig.seq)
            for fact in facts:
                if isinstance(fact, f.JobPlaced):
                    for member in fact.members:
                        self.rig.say(
                            f.JobStarted(
                                job_id=fact.job_id, attempt=fact.attempt, node_id=member.node_id
                            )
                        )

    def _end(self, job: Job) -> None:
        for node in list(job.members):
            self.rig.say(
                f.JobFinished(
                    job_id=job.job_id,
                    attempt=job.attempt,
                    node_id=node,
                    exit_code=0,
                    reason="stopped",
                )
            )
            self.rig.say(f.JobReleased(job_id=job.job_id, attempt=job.attempt, node_id=node))

    def step(self) -> Took:
        state, jobs = self.rig.state, self.rig.state.cluster.jobs
        head = self._submit(*self.dice.choice(HEADS), HIGH)
        state.ring(self.rig.seq)
        state.pass_time(self.rig.seq)
        began, used = time.perf_counter_ns(), time.thread_time_ns()
        facts = place(state) or preempt(state)
        state.apply_own(facts, self.rig.seq)
        for fact in facts:
            _encode(fact)
        took = Took(time.perf_counter_ns() - began, time.thread_time_ns() - used)
        ending = [jobs[fact.job_id] for fact in facts if isinstance(fact, f.JobPreempted)]
        assert ending, "everything is held, and what holds it may be preempted"
        for job in ending:
            self._end(job)
        self._settle()
        assert jobs[head].state in job_life.ON_NODES
        self._end(jobs[head])
        self._settle()
        return took


def main() -> None:
    full = Full()
    for _ in range(WARM):
        full.step()
    running = len(full.rig.state.preemptible.jobs)
    tell(
        "preempt_",
        timed(DECISIONS, full.rig, full.step),
        full.rig,
        gpus=NODES * 8,
        nodes=NODES,
        running=running,
        heads="1, 4, 8, 4 x 8",
    )


if __name__ == "__main__":
    main()
