"""The calm tenants: a steady mix of requests, and the time of each.

Each tenant has TASKS tasks in a window, at random moments that are the same in every window. A
task's time counts from its moment, not from when this process came to send it, so that a task that
had to wait behind others counts as slow. A `run` is two figures: the answer to the submission, and
the whole life of a job that runs `true`.
"""

import asyncio
import random
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp

from bench.cluster import ended, submit

# A client closes an idle connection before the gateway does.
KEEPALIVE_S: Final = 2.0
CHAT: Final = {
    "model": "m",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "Tell me about it."}],
}
# How often each task occurs among a hundred.
MIX: Final = {"get": 35, "list": 20, "log": 15, "chat": 20, "run": 10}
# Every figure of a window, in milliseconds.
Times = dict[str, list[float]]


class Calm:
    """One calm tenant with its session and a job that has ended, whose output it reads.

    `failed` counts its requests that were not answered with 200.
    """

    def __init__(self, url: str, name: str, key: str) -> None:
        self.name = name
        self.session = aiohttp.ClientSession(
            url,
            headers={"Authorization": f"Bearer {key}"},
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
        )
        self.job = ""
        self.failed = 0
        self.acts: dict[str, Callable[[Times, float], Awaitable[None]]] = {
            "get": self.get,
            "list": self.list,
            "log": self.log,
            "chat": self.chat,
            "run": self.run,
        }

    async def prepare(self) -> None:
        """Run the job whose output is read."""
        self.job = await submit(self.session, "seq", "200")
        await ended(self.session, self.job)

    async def _read(self, path: str, **params: Any) -> None:
        async with self.session.get(path, params=params) as answer:
            self._check(answer.status, await answer.read())

    def _check(self, status: int, body: bytes) -> None:
        """Count a request that failed, and print the first."""
        if status != 200:
            self.failed += 1
            if self.failed == 1:
                print(f"{self.name}: {body[:200]!r}", file=sys.stderr)

    async def get(self, times: Times, due_s: float) -> None:
        """Read one job."""
        await self._read(f"/v1/jobs/{self.job}")
        note(times, "get", due_s)

    async def list(self, times: Times, due_s: float) -> None:
        """Read a page of the own jobs."""
        await self._read("/v1/jobs", all="1", newest="1", limit="20")
        note(times, "list", due_s)

    async def log(self, times: Times, due_s: float) -> None:
        """Follow the output of a job to its end."""
        await self._read(f"/v1/jobs/{self.job}/output", follow="1")
        note(times, "log", due_s)

    async def chat(self, times: Times, due_s: float) -> None:
        """Ask a model."""
        async with self.session.post("/v1/chat/completions", json=CHAT) as answer:
            self._check(answer.status, await answer.read())
        note(times, "chat", due_s)

    async def run(self, times: Times, due_s: float) -> None:
        """Run a job to its end."""
        job = await submit(self.session, "true")
        note(times, "submit", due_s)
        await ended(self.session, job)
        note(times, "run", due_s)


def note(times: Times, figure: str, due_s: float) -> None:
    """Note the milliseconds since `due_s`."""
    times[figure].append((time.perf_counter() - due_s) * 1e3)


async def window(tenants: list[Calm], tasks: int, lasts_s: float) -> Times:
    """Let each tenant do its tasks within `lasts_s`; return all times."""
    chance = random.Random(7)
    began_s = time.perf_counter()
    times: Times = defaultdict(list)
    names, weights = list(MIX), list(MIX.values())

    async def task(tenant: Calm, name: str, due_s: float) -> None:
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        await tenant.acts[name](times, due_s)

    async with asyncio.TaskGroup() as group:
        for tenant in tenants:
            for name in chance.choices(names, weights, k=tasks):
                group.create_task(task(tenant, name, began_s + chance.random() * lasts_s))
    return times
