"""The agent's side of resident weights in a test's own process, and what engines do with it."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from services.node_agent.memory.gms.resident_weights import ResidentWeights
from tests.gms_world import DEVICES, Engine, admission, entry
from tests.memory_world import MIB, memory_of, until


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[ResidentWeights]:
    """Serve the entry `m`, to which this process's attempt `job.1` is admitted."""
    made = ResidentWeights(folder / "resident", "host", DEVICES)
    await made.open(())
    await made.serve(entry(folder))
    await made.admit("m", admission(folder))
    try:
        yield made
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(made.pid, signal.SIGKILL)
        await made.close()


async def asked(engine: Engine, *words: object) -> list[str]:
    return await asyncio.to_thread(engine.ask, *words)


async def published(path: str, seed: int = 1, *sizes: int) -> None:
    """Let an engine load and publish, and end."""
    writer = Engine()
    assert (await asked(writer, "connect", path, "rw"))[:2] == ["connected", "rw"]
    assert (await asked(writer, "load", seed, *(sizes or (MIB, 3 * MIB))))[0] == "loaded"
    assert await asked(writer, "commit") == ["committed"]
    writer.kill()


async def reading(path: str) -> Engine:
    reader = Engine()
    assert (await asked(reader, "connect", path, "rw_or_ro"))[:2] == ["connected", "ro"]
    assert (await asked(reader, "read"))[0] == "read"
    return reader


async def killed_server(weights: ResidentWeights) -> None:
    first = weights.pid
    os.kill(first, signal.SIGKILL)
    await until(lambda: weights.pid != first, "no server was started")
    await until(lambda: not os.path.exists(f"/proc/{first}/fd/0"), "the killed server lives")


def owned(weights: ResidentWeights) -> int:
    return sum(weights.owned().values())


async def exact(weights: ResidentWeights) -> None:
    """Bytes in use equal bytes owned, and agent and server have the same memory."""
    await until(
        lambda: (
            sum(memory_of(weights.pid).values()) == owned(weights)
            and memory_of(weights.pid) == memory_of(os.getpid())
        ),
        "bytes in use differ from bytes owned",
    )
