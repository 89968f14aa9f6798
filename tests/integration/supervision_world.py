"""One agent's supervisors with real processes, for the tests named test_supervision_*."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from services.node_agent.machine import processes
from services.node_agent.supervision import output
from services.node_agent.supervision.launch_request import LaunchRequest
from services.node_agent.supervision.supervised_job import Key
from services.node_agent.supervision.supervisor_client import (
    NO_GROUPS,
    SupervisorClient,
)
from services.node_agent.supervisor.lease import Lease, boottime_ns

NS_PER_S = 1_000_000_000
WAIT_S = 20.0
PATIENT = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


class World:
    """`events` are (key, event, record), in the order in which they were told."""

    def __init__(self, state_dir: Path, home: Mapping[str, str] = NO_GROUPS) -> None:
        state_dir.mkdir(exist_ok=True, parents=True)
        self.state_dir = state_dir
        self.events: list[tuple[Key, str, Mapping[str, Any]]] = []
        self.supervisors = SupervisorClient(state_dir, self._note, home)
        self.lease = Lease(str(state_dir / "lease"))
        self.extend(60.0)
        self._changed = asyncio.Event()

    def _note(self, key: Key, event: str, record: Mapping[str, Any]) -> None:
        self.events.append((key, event, record))
        self._changed.set()

    def extend(self, seconds: float) -> int:
        deadline_ns = boottime_ns() + int(seconds * NS_PER_S)
        self.lease.extend(deadline_ns)
        return deadline_ns

    def request(
        self, job_id: str, *argv: str, env: dict[str, str] | None = None, **fields: Any
    ) -> LaunchRequest:
        given = {
            "workdir": str(self.state_dir),
            "lease_path": self.lease.path,
            "attempt": 1,
            **fields,
        }
        return LaunchRequest(
            job_id=job_id, argv=list(argv), env={"PATH": os.environ["PATH"], **(env or {})}, **given
        )

    async def launch(self, job_id: str, *argv: str, **fields: Any) -> Key:
        await self.supervisors.launch(self.request(job_id, *argv, **fields))
        return (job_id, fields.get("attempt", 1))

    async def shell(self, job_id: str, script: str, **fields: Any) -> Key:
        return await self.launch(job_id, "/bin/sh", "-c", script, **fields)

    async def run(self, job_id: str, script: str, **fields: Any) -> Mapping[str, Any]:
        return await self.told(await self.shell(job_id, script, **fields), "exited")

    async def told(self, key: Key, event: str, timeout_s: float = WAIT_S) -> Mapping[str, Any]:
        async with asyncio.timeout(timeout_s):
            while True:
                for of, name, record in self.events:
                    if of == key and name == event:
                        return record
                self._changed.clear()
                await self._changed.wait()

    async def printed(self, key: Key, wanted: bytes, stream: str = "stdout") -> bytes:
        """The output, once it holds `wanted`."""
        async with asyncio.timeout(WAIT_S):
            while wanted not in (data := self.output(key, stream)):
                await asyncio.sleep(0.01)
        return data

    def output(self, key: Key, stream: str = "stdout") -> bytes:
        return output.read(self.supervisors.job_dir(key), stream, 0, 1 << 30).data

    def names(self, key: Key) -> list[str]:
        return [name for of, name, _ in self.events if of == key]


@contextlib.asynccontextmanager
async def world_at(state_dir: Path, home: Mapping[str, str] = NO_GROUPS) -> AsyncIterator[World]:
    """Ends what the test left behind."""
    world = World(state_dir, home)
    await world.supervisors.start()
    try:
        yield world
    finally:
        for key in {key for key, _, _ in world.events}:
            if "exited" not in world.names(key):
                await world.supervisors.kill(key)
                await world.told(key, "exited")
        await world.supervisors.close()


async def gone(pid: int, timeout_s: float = WAIT_S) -> None:
    """Until the process is dead; a zombie is dead."""
    async with asyncio.timeout(timeout_s):
        while (found := processes.process(pid)) is not None and found.state not in "ZX":
            await asyncio.sleep(0.005)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def python(script: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", script)
