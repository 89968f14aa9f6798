"""Timing of one scheduler decision, shared by `placement_*.py`.

A decision is the rule `place` and everything that follows from it in this process: the order of the
queue, the choice of nodes and devices, the fold of the fact with every index over it, and the
encoding of the fact. When the rule `place` decides nothing, the last rule runs, as in the shell.
Its time is printed separately.

The garbage collector is frozen once the cluster is built, as after a replay. Further decisions are
counted in Python bytecodes. That number is the same on every machine, however busy the machine is.
"""

import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final, NamedTuple

import msgspec

from bench.cluster import quantile, say
from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.change import Stamp
from libs.common.facts import AnyFact, JobPlaced
from libs.common.model import Gpu, GpuId, NodeId
from libs.common.process.service import freeze_collector
from libs.common.state.cluster import Cluster
from services.scheduler.decide.placing import catch_up, place
from services.scheduler.state.state import State

EPOCH: Final = 1
US: Final = 1_000
COUNTED: Final = 1_000
_encode: Final = msgspec.msgpack.Encoder().encode


def machine(number: int, gpus: int = 8, racks: int = 16, spines: int = 128) -> f.NodeRegistered:
    """Return a node like a DGX: pairs behind a switch, two sockets, all linked; so many nodes in a
    rack, and under a spine.
    """
    name = f"n{number}"
    devices = tuple(
        Gpu(
            uuid=GpuId(f"{name}-{i}"),
            index=i,
            vendor="nvidia",
            model="H100",
            memory_bytes=80 << 30,
            compute_capability=(9, 0),
            numa=i * 2 // gpus,
            switch=f"s{i // 2}",
            links="all",
        )
        for i in range(gpus)
    )
    return f.NodeRegistered(
        node_id=NodeId(name),
        incarnation=1,
        address=f"10.0.{number >> 8}.{number & 255}",
        gpus=devices,
        cpus_milli=112_000,
        memory_bytes=2 << 40,
        rack=f"r{number // racks}",
        spine=f"x{number // spines}",
        sockets=(0, 1),
    )


class Took(NamedTuple):
    """Nanoseconds: by the clock, and of this thread's CPU.

    On a machine that others use too only the second is the program's own.
    """

    wall: int
    cpu: int


class Bytecodes:
    """Those of one decision after the other, and how many of them are of the fold of its fact,
    which every reader of the log runs.
    """

    def __init__(self) -> None:
        self.all: list[int] = []
        self.fold: list[int] = []

    def begin(self) -> None:
        self.all.append(0)
        self.fold.append(0)
        sys.settrace(self._enter)

    def drop(self) -> None:
        """Forget the measurement: nothing was decided."""
        self.all.pop()
        self.fold.pop()

    def _enter(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._in_fold if "/libs/common/" in frame.f_code.co_filename else self._elsewhere

    def _elsewhere(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        self.all[-1] += event == "opcode"
        return self._elsewhere

    def _in_fold(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        self.all[-1] += event == "opcode"
        self.fold[-1] += event == "opcode"
        return self._in_fold


class SchedulerRig:
    """A scheduler's state that hears facts from elsewhere, as the log would bring them."""

    def __init__(self, nodes: Sequence[f.NodeRegistered]) -> None:
        cluster = Cluster()
        self.seq = EPOCH
        self.rested: list[int] = []
        self.bytecodes: Bytecodes | None = None
        fold.apply(
            cluster,
            f.TermBegan(instance="bench"),
            Stamp(seq=EPOCH, at_ns=0, epoch=EPOCH, writer=subjects.SCHEDULER_KIND, writer_id=""),
        )
        for node in nodes:
            fold.apply(cluster, node, self._stamp(node))
        self.state = State(cluster)
        self.state.begin(EPOCH, 0)

    def say(self, fact: AnyFact) -> None:
        change = fold.apply(self.state.cluster, fact, self._stamp(fact))
        self.state.refresh(change)

    def end(self, job: JobPlaced) -> None:
        """End the job on all its nodes and close it."""
        name, nodes = job.job_id, [member.node_id for member in job.members]
        for node in nodes:
            self.say(f.JobStarted(job_id=name, attempt=1, node_id=node))
        for node in nodes:
            self.say(f.JobFinished(job_id=name, attempt=1, node_id=node, exit_code=0))
            self.say(f.JobReleased(job_id=name, attempt=1, node_id=node))
        self.say(f.JobClosed(job_id=name, attempt=1, outcome="completed", exit_code=0))

    def _stamp(self, fact: AnyFact) -> Stamp:
        self.seq += 1
        kind = subjects.WRITER_OF[type(fact)]
        writer = str(getattr(fact, "node_id", "")) if kind == subjects.NODE_KIND else ""
        return Stamp(seq=self.seq, at_ns=self.seq, epoch=EPOCH, writer=kind, writer_id=writer)

    def rest(self) -> None:
        """Run the last rule when there is nothing to decide, and record its time."""
        began = time.perf_counter_ns()
        catch_up(self.state)
        self.rested.append(time.perf_counter_ns() - began)

    def decide(self) -> tuple[JobPlaced | None, Took]:
        """Decide the next placement; return its fact, or None, and the time that it took."""
        if self.bytecodes is not None:
            self.bytecodes.begin()
        began, used = time.perf_counter_ns(), time.thread_time_ns()
        facts = place(self.state)
        if facts:
            self.state.apply_own(facts, self.seq)
            _encode(facts[0])
        wall, cpu = time.perf_counter_ns() - began, time.thread_time_ns() - used
        sys.settrace(None)
        if self.bytecodes is not None and not facts:
            self.bytecodes.drop()
        if not facts:
            self.rest()
        placed = facts[0] if facts and isinstance(facts[0], JobPlaced) else None
        return placed, Took(wall, cpu)


def timed(rounds: int, rig: SchedulerRig, step: Callable[[], Took]) -> list[Took]:
    """Run `step` for `rounds` decisions and return their times."""
    freeze_collector()
    rig.rested.clear()
    return [step() for _ in range(rounds)]


def count(name: str, rig: SchedulerRig, step: Callable[[], Took], **setting: object) -> None:
    """Print how many bytecodes a decision takes, and how many of them the fold takes."""
    rig.bytecodes = Bytecodes()
    for _ in range(COUNTED):
        step()
    for what, found in (("", rig.bytecodes.all), ("fold_", rig.bytecodes.fold)):
        for label, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            say(
                f"{name}{what}bytecodes_{label}",
                quantile([float(each) for each in found], part),
                "bytecodes",
                len(found),
                **setting,
            )
    rig.bytecodes = None


def tell(name: str, times: list[Took], rig: SchedulerRig, **setting: object) -> float:
    """Print p50, p99, p99.9 and the maximum in wall and CPU time, and the mean time between
    decisions.

    Returns the p50 in wall time.
    """
    for kind, found in (
        ("", [each.wall / US for each in times]),
        ("cpu_", [each.cpu / US for each in times]),
    ):
        for label, part in (("p50", 0.5), ("p99", 0.99), ("p999", 0.999), ("max", 1.0)):
            say(f"{name}{kind}{label}_us", quantile(found, part), "us", len(found), **setting)
    say(
        f"{name}rest_us",
        sum(rig.rested) / len(times) / US,
        "us per decision",
        len(rig.rested),
        **setting,
    )
    return quantile([each.wall / US for each in times], 0.5)
