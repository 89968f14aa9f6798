"""Processor time that tracing costs a PyTorch process: while it only waits for one, and while it is
traced.

A process trains a small model, as Muster starts it. `idle_overhead_pct` is the part of its
processor time that the thread takes which asks for orders: nothing else runs until a trace begins.
`traced_overhead_pct` compares the processor time of a step while it is traced with that of the same
process before and after. Two processes would differ by more than this, by their layout in memory.
Needs TORCH_PYTHON, a Python with torch. Prints one JSON line per figure. QUICK=1 takes fewer turns.
"""

import asyncio
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from libs.common.messages import trace_messages as m
from libs.common.model import JobId
from libs.common.traces.clock_offset import ClockPoint
from services.node_agent.tracing import observing
from services.node_agent.tracing.doors import Door
from services.node_agent.tracing.tracing import DAEMON, LOG_LEVEL, OUTPUT, SOCKETS, Tracing

QUICK: Final = os.environ.get("QUICK") == "1"
TURNS: Final = 12 if QUICK else 60
TURN_MS: Final = 300
KEY: Final = "j.1"
LEAD_NS: Final = 8_000_000_000
TRACE_MS: Final = 6_000
MS_NS: Final = 1_000_000
TRACES: Final = 1 if QUICK else 4


class Worker:
    """One process that trains."""

    def __init__(self, python: str, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [python, str(Path(__file__).with_name("trace_worker.py"))],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    async def turn_us(self) -> float:
        """Return the processor time of a step in one turn."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{TURN_MS}\n")
        self.process.stdin.flush()
        steps, used_ns = map(int, (await asyncio.to_thread(self.line)).split())
        return used_ns / steps / 1_000


async def turns(worker: Worker, count: int) -> list[float]:
    """Return the processor time per step of some turns."""
    return [await worker.turn_us() for _ in range(count)]


def begin(start_ns: int) -> m.TraceBegin:
    return m.TraceBegin(
        trace=secrets.token_hex(8),
        job_id=JobId("j"),
        attempt=1,
        start_ns=start_ns,
        duration_ms=TRACE_MS,
        point=ClockPoint(start_ns, 0),
        origin_ns=start_ns,
        place=0,
    )


def figure(name: str, value: float, count: int) -> None:
    line = {"figure": name, "value": round(value, 3), "unit": "%", "n": count, "setting": "torch"}
    print(json.dumps(line), flush=True)


async def main() -> None:
    """Measure and print."""
    python = os.environ.get("TORCH_PYTHON")
    if not python:
        print("trace: set TORCH_PYTHON to a Python with torch", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as folder:
        tracing = Tracing(Path(folder), 1 << 30, 1 << 30)
        await tracing.adopt({})
        door = Door(tracing.folders.of(KEY), KEY, "t", 0, ())
        door.open()
        tracing.doors[KEY] = door
        env = {DAEMON: "1", SOCKETS: door.folder, OUTPUT: door.folder, LOG_LEVEL: "3"}
        worker = Worker(python, env)
        try:
            await measure(tracing, door, worker)
        finally:
            worker.process.kill()
            tracing.let_go(KEY)
            await tracing.close()
            if not tracing.folders.root.startswith(folder):
                shutil.rmtree(tracing.folders.root)


async def measure(tracing: Tracing, door: Door, worker: Worker) -> None:
    """Print the figures of one process."""
    while not door.living():
        await asyncio.sleep(0.1)
    pid = worker.process.pid
    asks = observing.threads(pid) - {str(pid)}
    first = observing.used(pid, time.monotonic_ns(), asks)
    base = await turns(worker, TURNS)
    last = observing.used(pid, time.monotonic_ns(), asks)
    part = (last.tracer_ns - first.tracer_ns) / (last.process_ns - first.process_ns)
    figure("idle_overhead_pct", 100 * part, TURNS)
    traced: list[float] = []
    for _ in range(TRACES):
        traced += await turns_traced(tracing, worker)
        base += await turns(worker, TURNS // 4)
    slower = statistics.median(traced) / statistics.median(base) - 1
    figure("traced_overhead_pct", 100 * slower, len(traced))


async def turns_traced(tracing: Tracing, worker: Worker) -> list[float]:
    """Trace once; return the processor time per step of the turns within the trace."""
    order = begin((time.time_ns() + LEAD_NS) // MS_NS * MS_NS)
    state = await tracing._begin(order)
    assert not state.fault, state.text
    capture = tracing.captures[order.trace]
    while capture.state == m.WAITING:
        await asyncio.sleep(0.02)
    found: list[float] = []
    while capture.state == m.TRACING:
        time_us = await worker.turn_us()
        if capture.state == m.TRACING:
            found.append(time_us)
    while order.trace in tracing.captures:
        if capture.state == m.CAPTURED and not capture.finish.done():
            capture.finish.set_result(None)
        await asyncio.sleep(0.1)
    return found


if __name__ == "__main__":
    asyncio.run(main())
