"""The churn of a soak: everything that users and operators do again and again, until cancelled.

Each kind of work is a loop of its own with a pace. An answer that is not the expected one is
counted, not raised: the run goes on, and the counts are printed at its end.
"""

import asyncio
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final

import aiohttp

from bench import model_backend
from bench.cluster import Cluster

ASK_S: Final = 30.0
# Pauses of each loop.
JOB_S: Final = 0.4
LIST_S: Final = 0.5
STREAM_S: Final = 4.0
CANCEL_S: Final = 2.0
CHAT_S: Final = 0.2
MODEL_S: Final = 30.0
AGENT_S: Final = 45.0
TENANT_S: Final = 5.0
AWAY_S: Final = 3.0
READY_S: Final = 40.0
# The agent that comes and goes, with one that is killed and one that is stopped in turn.
GUEST: Final = "node-4"
MODEL: Final = "soak"
LISTS: Final = (
    *("/v1/jobs?all=true&limit=200", "/v1/nodes", "/v1/gpus?limit=200", "/v1/cluster"),
    *("/v1/events?limit=100", "/v1/tenants", "/v1/deployments", "/v1/queues", "/v1/access"),
)


class Churn:
    """`done` counts the work by kind, `failed` the unexpected answers by kind and status."""

    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession, seed: int) -> None:
        self.cluster, self.session = cluster, session
        self.chance = random.Random(f"{seed} churn")
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    async def run(self) -> None:
        loops = (
            (self._job, JOB_S),
            (self._list, LIST_S),
            (self._stream, STREAM_S),
            (self._cancel, CANCEL_S),
            (self._chat, CHAT_S),
            (self._model, MODEL_S),
            (self._agent, AGENT_S),
            (self._tenant, TENANT_S),
        )
        await self._deploy()
        async with asyncio.TaskGroup() as group:
            for work, pause_s in loops:
                group.create_task(self._again(work, pause_s))

    async def _again(self, work: Callable[[], Awaitable[None]], pause_s: float) -> None:
        name = work.__name__.strip("_")
        while True:
            try:
                await work()
                self.done[name] += 1
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self.failed[f"{name} {type(error).__name__}"] += 1
            await asyncio.sleep(self.chance.uniform(0.5, 1.5) * pause_s)

    async def ask(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer's body; count an error."""
        url = self.chance.choice(self.cluster.urls) + path
        async with self.session.request(method, url, json=body) as answer:
            text = await answer.text()
            if answer.status >= 400:
                self.failed[
                    f"{method} {path.partition('?')[0].rpartition('/')[0]} {answer.status}"
                ] += 1
                return {}
            return await answer.json(content_type=None) if text else {}

    async def _job(self) -> None:
        seconds = self.chance.choice(("0", "0", "0", "0.5", "2"))
        command = ["sh", "-c", f"echo begun; sleep {seconds}; echo done"]
        await self.ask("POST", "/v1/jobs", {"command": command, "gpus": self.chance.choice((1, 2))})

    async def _list(self) -> None:
        await self.ask("GET", self.chance.choice(LISTS))

    async def _stream(self) -> None:
        """Follow a job's output and the event stream, and leave both."""
        made = await self.ask("POST", "/v1/jobs", {"command": ["sh", "-c", "seq 200; sleep 1"]})
        url = self.chance.choice(self.cluster.urls)
        for path in (f"/v1/jobs/{made.get('id')}/output?follow=true", "/v1/watch"):
            async with self.session.get(url + path, timeout=LOOK) as answer:
                self.failed[f"GET {path.rpartition('/')[2]} {answer.status}"] += (
                    answer.status >= 400
                )
                try:
                    async for _ in answer.content.iter_any():
                        pass
                except TimeoutError:
                    continue

    async def _cancel(self) -> None:
        made = await self.ask("POST", "/v1/jobs", {"command": ["sleep", "60"]})
        await asyncio.sleep(self.chance.uniform(0.0, 1.0))
        if made:
            await self.ask("POST", f"/v1/jobs/{made['id']}/cancel")

    async def _chat(self) -> None:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
        stream = self.chance.random() < 0.5
        await self.ask_text("/v1/chat/completions", {**body, "stream": stream})

    async def ask_text(self, path: str, body: object) -> None:
        url = self.chance.choice(self.cluster.urls) + path
        async with self.session.post(url, json=body) as answer:
            self.failed[f"POST {path} {answer.status}"] += answer.status >= 400
            await answer.read()

    async def _deploy(self) -> None:
        command = [sys.executable, model_backend.__file__, "{port}"]
        await self.ask(
            "POST", "/v1/deployments", {"name": MODEL, "command": command, "replicas": 2}
        )

    async def _model(self) -> None:
        """Scale the model, and make and remove another one."""
        await self.ask(
            "PATCH", f"/v1/deployments/{MODEL}", {"replicas": self.chance.choice((1, 2, 3))}
        )
        command = [sys.executable, model_backend.__file__, "{port}"]
        name = f"guest-{self.done['model']}"
        await self.ask("POST", "/v1/deployments", {"name": name, "command": command, "replicas": 1})
        await asyncio.sleep(AWAY_S)
        await self.ask("DELETE", f"/v1/deployments/{name}")

    async def _tenant(self) -> None:
        """Make a tenant with a key, and remove both."""
        name = f"tenant-{self.done['tenant']}"
        await self.ask("PUT", f"/v1/tenants/{name}", {"max_gpus": 2})
        made = await self.ask(
            "POST", "/v1/keys", {"user": "guest", "tenant": name, "role": "member"}
        )
        await self.ask("DELETE", f"/v1/keys/{made.get('id')}")
        await self.ask("DELETE", f"/v1/tenants/{name}")

    async def _agent(self) -> None:
        """End the guest's agent, killed or stopped, and start it again."""
        process = self.cluster.processes[GUEST]
        process.send_signal(self.chance.choice((signal.SIGKILL, signal.SIGTERM)))
        await asyncio.to_thread(_wait, process)
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(self.cluster.start_again, GUEST)


def _wait(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(READY_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


LOOK: Final = aiohttp.ClientTimeout(total=2.0)
