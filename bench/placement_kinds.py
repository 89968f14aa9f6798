"""Cost of a decision, in bytecodes and processor time, while one tenant has endlessly many kinds of
jobs in front that limits block or that no node could serve.

Each case is a cluster of GPUS GPUs in steady state (`placement_whole.py`) with KINDS such jobs of a
greedy tenant before all others: each asks for another number of GPUs at a limit (`sizes`), another
duration under a budget (`durations`), another amount of GPU memory near a limit (`memories`), or
more than any node has (`impossible`). Then a node joins, and a new scheduler with the same state
makes its first pass. Bytecodes are the same on every machine. CASE=name: this case only.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Final

from bench.cluster import QUICK, quantile, say
from bench.decision import Bytecodes, machine
from bench.placement_whole import Steady
from libs.common import facts as f
from libs.common.model import Allocation, JobId, JobSpec, TenantId
from libs.common.process.service import freeze_collector
from services.scheduler.decide.placing import place
from services.scheduler.state.state import State

GPUS: Final = 1_024
WAITING: Final = 1_000
KINDS: Final = 1_000 if QUICK else 10_000
COUNTED: Final = 20
JOINS: Final = 5
GREEDY: Final = TenantId("greedy")
GIB: Final = 1 << 30
COMMAND: Final = ("true",)


def sizes(steady: Steady) -> Iterator[JobSpec]:
    """Yield jobs of different numbers of GPUs, all more than the tenant may have."""
    steady.rig.say(f.TenantSet(tenant=GREEDY, max_gpu_share=100))
    for number in range(KINDS):
        yield JobSpec(command=COMMAND, gpus=1, nodes=number + 2, priority=100)


def durations(steady: Steady) -> Iterator[JobSpec]:
    """Yield allocations of different durations, all longer than the budget."""
    steady.rig.say(f.TenantSet(tenant=GREEDY, gpu_hours=1))
    for number in range(KINDS):
        yield JobSpec(
            command=COMMAND, gpus=1, priority=100, allocation=Allocation(expires_s=7_200 + number)
        )


def memories(steady: Steady) -> Iterator[JobSpec]:
    """Yield jobs of different amounts of GPU memory, all more than what is left of the limit."""
    steady.rig.say(f.TenantSet(tenant=GREEDY, max_gpu_share=100))
    submit(steady, "held", JobSpec(command=COMMAND, gpu_share=50, priority=200))
    steady.end_one()
    assert steady.place() is not None
    for number in range(KINDS // 10):
        memory = 41 * GIB + number * (GIB >> 5)
        yield JobSpec(command=COMMAND, gpu_memory_bytes=memory, priority=100)


def impossible(steady: Steady) -> Iterator[JobSpec]:
    """Yield jobs of more GPUs than a node has."""
    for number in range(KINDS):
        yield JobSpec(command=COMMAND, gpus=16, cpus_milli=number + 1, priority=100)


CASES: Final[dict[str, Callable[[Steady], Iterator[JobSpec]]]] = {
    "none": lambda steady: iter(()),
    "sizes": sizes,
    "durations": durations,
    "memories": memories,
    "impossible": impossible,
}


def submit(steady: Steady, name: str, spec: JobSpec) -> None:
    """Let a job of the greedy tenant wait."""
    job_id = JobId(name)
    for fact in (
        f.JobSubmitted(job_id=job_id, spec=spec, tenant=GREEDY),
        f.JobAdmitted(job_id=job_id),
        f.JobQueued(job_id=job_id),
    ):
        steady.rig.say(fact)


def cpu_ms(act: Callable[[], object]) -> float:
    """Return the milliseconds of processor time."""
    began = time.thread_time_ns()
    act()
    return (time.thread_time_ns() - began) / 1e6


def join(steady: Steady, number: int) -> float:
    """Return the time until the pass after a node has joined is over."""

    def joined() -> None:
        steady.rig.say(machine(number))
        steady.rig.decide()

    return cpu_ms(joined)


def measure(name: str) -> None:
    """Measure one case."""
    steady = Steady(GPUS, WAITING)
    for number, spec in enumerate(CASES[name](steady)):
        submit(steady, f"kind{number}", spec)
    freeze_collector()
    steady.step()
    times = [steady.step().cpu / 1e6 for _ in range(COUNTED)]
    say(f"{name}_decision_cpu_ms", median(times), "ms", COUNTED, kinds=KINDS)
    steady.rig.bytecodes = Bytecodes()
    for _ in range(COUNTED):
        steady.step()
    found = [float(each) for each in steady.rig.bytecodes.all]
    steady.rig.bytecodes = None
    sys.settrace(None)
    say(f"{name}_bytecodes_p50", quantile(found, 0.5), "bytecodes", len(found), kinds=KINDS)
    joins = [join(steady, GPUS // 8 + number) for number in range(JOINS)]
    say(f"{name}_join_cpu_ms", median(joins), "ms", JOINS, kinds=KINDS)
    state = State(steady.rig.state.cluster)
    say(f"{name}_first_pass_cpu_ms", cpu_ms(lambda: place(state)), "ms", 1, kinds=KINDS)


if __name__ == "__main__":
    chosen = os.environ.get("CASE")
    for case in [chosen] if chosen else CASES:
        measure(case)
