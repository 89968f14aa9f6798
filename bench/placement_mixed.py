"""Time of a decision under a mixed load: the pods of the openb trace on its 1,213 nodes.

The scheduler uses `fragmentation` with the learnt workload mix. The bench keeps the cluster nearly
as full as it can be. Each round places one pod of the list and ends random running pods. A pod that
does not fit is withdrawn, and its decision is not counted. `decision.py` defines a decision. The
lists are in the folder MUSTER_TRACES (`packing.py`).
"""

import os
import random
import sys
from pathlib import Path
from typing import Final

from bench.cluster import QUICK
from bench.decision import SchedulerRig, Took, count, tell, timed
from bench.packing import Trace, read
from libs.common import facts as f
from libs.common.model import WHOLE_GPU, Gpu, GpuId, JobId, JobSpec, NodeId
from services.scheduler.placement.resource_request import ResourceRequest

DECISIONS: Final = 5_000 if QUICK else 200_000
VARIANT: Final = "default"
# Part of all GPUs that is allocated. At 0.96 nothing fits any more.
FILLED: Final = 0.93


class Steady:
    """The cluster as full as it is kept, and what runs on it."""

    def __init__(self, trace: Trace) -> None:
        self.dice = random.Random(1)
        self.trace = trace
        self.rig = SchedulerRig(
            [_machine(number, *node) for number, node in enumerate(trace.nodes)]
        )
        self.running: list[f.JobPlaced] = []
        self.share_of: dict[JobId, int] = {}
        self.total = WHOLE_GPU * sum(gpus for _, _, gpus, _ in trace.nodes)
        self.held = 0
        self.number = 0
        while self.held < FILLED * self.total:
            self.step()

    def submit(self) -> None:
        job_id, pod = JobId(f"j{self.number}"), self.dice.choice(self.trace.pods)
        self.number += 1
        for fact in (
            f.JobSubmitted(job_id=job_id, spec=_spec(pod)),
            f.JobAdmitted(job_id=job_id),
            f.JobQueued(job_id=job_id),
        ):
            self.rig.say(fact)
        self.share_of[job_id] = pod.gpus * pod.share

    def step(self) -> Took:
        """Submit a pod and place it; withdraw one that does not fit and submit another one."""
        while True:
            self.submit()
            placed, took = self.rig.decide()
            if placed is not None:
                break
            self.withdraw(JobId(f"j{self.number - 1}"))
        self.running.append(placed)
        self.held += self.share_of[placed.job_id]
        while self.held > FILLED * self.total:
            self.end_one()
        self.rig.rest()
        return took

    def withdraw(self, job_id: JobId) -> None:
        self.rig.say(f.CancelRequested(job_id=job_id))
        self.rig.say(f.JobClosed(job_id=job_id, attempt=1, outcome="cancelled", reason="cancelled"))
        del self.share_of[job_id]

    def end_one(self) -> None:
        where = self.dice.randrange(len(self.running))
        self.running[where], self.running[-1] = self.running[-1], self.running[where]
        job = self.running.pop()
        self.held -= self.share_of.pop(job.job_id)
        self.rig.end(job)


def _machine(number: int, cpus: int, memory: int, gpus: int, model: str) -> f.NodeRegistered:
    devices = tuple(
        Gpu(
            uuid=GpuId(f"n{number}-{gpu}"),
            index=gpu,
            vendor="openb",
            model=model,
            memory_bytes=16 << 30,
        )
        for gpu in range(gpus)
    )
    node, address = NodeId(f"n{number}"), f"10.0.{number >> 8}.{number & 255}"
    return f.NodeRegistered(
        node_id=node,
        incarnation=1,
        address=address,
        gpus=devices,
        cpus_milli=cpus,
        memory_bytes=memory << 20,
    )


def _spec(pod: ResourceRequest) -> JobSpec:
    return JobSpec(
        command=("true",),
        gpus=pod.gpus,
        gpu_share=pod.share,
        model=pod.model,
        cpus_milli=pod.cpus_milli,
        memory_bytes=pod.memory_bytes,
    )


def main() -> None:
    folder = Path(os.environ.get("MUSTER_TRACES", "../shared/traces")) / "openb"
    if not folder.is_dir():
        sys.exit(
            f"there is no {folder}: set MUSTER_TRACES to the folder that holds openb/ "
            "(cluster-trace-gpu-v2023)"
        )
    steady = Steady(read(folder, VARIANT))
    times = timed(DECISIONS, steady.rig, steady.step)
    setting = {
        "nodes": len(steady.trace.nodes),
        "variant": VARIANT,
        "filled": FILLED,
        "strategy": "fragmentation",
    }
    tell("", times, steady.rig, **setting)
    count("", steady.rig, steady.step, **setting)


if __name__ == "__main__":
    main()
