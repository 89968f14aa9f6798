"""A real cluster and the real command, for the tests of `muster exec` and `muster port-forward`."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.chaos.cluster import Chaos, running

PATIENCE_S = 60.0
MUSTER = (sys.executable, "-c", "from libs.cli.main import main; main()")


class World:
    """`chaos` is the cluster; commands run as its administrator unless `more` says another key."""

    def __init__(self, chaos: Chaos) -> None:
        self.chaos = chaos
        self.jobs: list[str] = []

    def environ(self, **more: str) -> dict[str, str]:
        return {
            **os.environ,
            "MUSTER_PROFILE": str(self.chaos.folder / "profile.json"),
            "PYTHONPATH": os.getcwd(),
            **more,
        }

    def start(
        self, *arguments: str, stdin: int = subprocess.DEVNULL, **more: str
    ) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*MUSTER, *arguments],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environ(**more),
        )

    async def muster(
        self, *arguments: str, stdin: bytes | None = None, **more: str
    ) -> tuple[int, str, str]:
        """(exit code, stdout, stderr)."""
        process = self.start(
            *arguments, stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, **more
        )
        out, err = await asyncio.to_thread(process.communicate, stdin, PATIENCE_S)
        return process.returncode, out.decode(), err.decode()

    async def job(self, script: str = "echo up; exec sleep 300", **more: Any) -> str:
        """One that has said `up`."""
        body = {
            "command": ["/bin/sh", "-c", script],
            "gpus": 1,
            "workdir": str(self.chaos.folder),
            **more,
        }
        status, shown = await self.chaos.try_once("POST", "/v1/jobs", json=body)
        assert status == 201, shown
        self.jobs.append(shown["id"])
        await eventually(lambda: self._said(shown["id"], "up"))
        await eventually(lambda: self._state(shown["id"], "running"))
        return str(shown["id"])

    async def _said(self, job_id: str, text: str) -> bool:
        async with self.chaos.session.get(f"/v1/jobs/{job_id}/output") as answer:
            return text in await answer.text()

    async def _state(self, job_id: str, state: str) -> bool:
        return bool((await self.chaos.get(f"/v1/jobs/{job_id}"))["state"] == state)

    async def is_over(self, job_id: str) -> bool:
        return bool((await self.chaos.get(f"/v1/jobs/{job_id}"))["ended_at"])

    async def until(self, job_id: str, state: str) -> None:
        await eventually(lambda: self._state(job_id, state))

    async def end(self, job_id: str) -> None:
        await self.chaos.try_once("POST", f"/v1/jobs/{job_id}/kill", json={})

    def kill_agent(self) -> None:
        ticket = self.chaos.ticket("node-1")
        assert ticket is not None
        os.kill(ticket.pid, signal.SIGKILL)


async def eventually(holds: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
    """Until it does; a coroutine is awaited."""
    deadline = time.monotonic() + patience_s
    while True:
        found = holds()
        if await found if asyncio.iscoroutine(found) else found:
            return
        assert time.monotonic() < deadline, "it never held"
        await asyncio.sleep(0.05)


def is_gone(pid: int) -> bool:
    """A zombie is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


@asynccontextmanager
async def channel_world(folder: Path, **settings: str) -> AsyncIterator[World]:
    async with running(folder, nodes=1, gpus=8, **settings) as chaos:
        world = World(chaos)
        try:
            yield world
        finally:  # a stopped cluster's jobs live on
            for job_id in world.jobs:
                await world.end(job_id)
            for job_id in world.jobs:
                await eventually(lambda job_id=job_id: world.is_over(job_id))
