"""Weights that stay in device memory between engines, by the GMS protocol, on the real driver: a
second engine maps them, also after the weight server was killed, and a drop frees them.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from libs.job.device import context as public
from libs.job.device.context import Context
from services.node_agent.memory.device_memory import Device
from services.node_agent.memory.gms.resident_weights import ResidentWeights
from tests.gms_world import admission, entry
from tests.gpu.conftest import Machine
from tests.gpu.said import say
from tests.memory_world import until

GIB: Final = 1 << 30
PIECES: Final = 8
SETTLES_S: Final = 30.0


class Engine:
    """A process of tests/gpu/weights_engine.py."""

    def __init__(self, *words: object) -> None:
        line = [sys.executable, "-m", "tests.gpu.weights_engine", *map(str, words)]
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE)

    async def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(await asyncio.to_thread(self.process.stdout.readline))
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


async def test_a_second_engine_maps_what_the_first_has_loaded(machine: Machine) -> None:
    folder = Path(tempfile.mkdtemp(prefix="muster-gms-"))  # a socket path has at most 107 bytes
    first = public.devices("nvidia")[0]
    device = Device(0, "cuda", 2 * PIECES * GIB, first.uuid, first.pci_bus)
    weights = ResidentWeights(folder / "resident", "cuda", [device])
    try:
        with Context(first) as context:
            await _stays(weights, folder, context)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(weights.pid, signal.SIGKILL)
        await weights.close()
        shutil.rmtree(folder)


async def _stays(weights: ResidentWeights, folder: Path, context: Context) -> None:
    before = context.memory()[0]
    await weights.open(())
    await weights.serve(entry(folder, limit=PIECES * GIB))
    await weights.admit("m", admission(folder))
    path = f"{folder}/m.sock"
    assert (await Engine("load", path, PIECES, GIB).line()) == {"loaded": PIECES}
    took, first = [], weights.pid
    for killed in (False, True):
        if killed:
            os.kill(first, signal.SIGKILL)
            await until(lambda: weights.pid != first, "no server was started")
        engine = Engine("map", path)
        found = await engine.line()
        assert (found["mapped"], found["same"]) == (PIECES, True), found
        took.append(found["ms"])
        assert before - context.memory()[0] >= PIECES * GIB
        engine.kill()
    say("weights_mapped_ms", took[0], "ms", 1, gib=PIECES, after_a_killed_server_ms=took[1])
    assert [each.bytes for each in weights.entries()] == [PIECES * GIB]
    await _until_dropped(weights, context, before)


async def _until_dropped(weights: ResidentWeights, context: Context, before: int) -> None:
    """Everything is free again; the server's own driver may keep a little."""
    await weights.drop("m", force=True)
    deadline = time.monotonic() + SETTLES_S
    while before - context.memory()[0] > GIB // 2 and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    left = before - context.memory()[0]
    say("weights_left_bytes", left, "bytes", 1)
    assert left <= GIB // 2
