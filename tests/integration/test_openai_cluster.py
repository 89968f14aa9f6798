"""A whole cluster with the example server as a model: both clients, and requests that go on while
parts of the cluster are killed.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from tests.chaos.cluster import Chaos, running
from tests.integration.test_openai_clients import RUN_S, needs_old_client, old_python
from tests.tidy import ROOT

__all__ = ["old_python"]
SERVER: Final = ROOT / "examples" / "model_server.py"
CHAT: Final = "/v1/chat/completions"
READY_S: Final = 60.0
STEADY_S: Final = 1.5
CLIENTS: Final = 8


def address(chaos: Chaos) -> tuple[str, str]:
    """Return the gateway's address and the administrator's key."""
    key = str(chaos.session.headers["Authorization"]).removeprefix("Bearer ")
    return str(chaos.session._base_url).rstrip("/"), key


async def deployed(chaos: Chaos) -> None:
    """The example server as the model `m`, ready twice."""
    command = [sys.executable, str(SERVER), "--port", "{port}", "--model", "m", "--token-ms", "2"]
    status, body = await chaos.try_once(
        "POST", "/v1/deployments", json={"name": "m", "replicas": 2, "command": command}
    )
    assert status == 201, body
    ids: list[str] = []
    while True:
        # Steady: with a port that something else on this machine has taken, a replica ends at once
        # and the next one gets another port.
        before, ids = (
            ids,
            [each["id"] for each in await ready(chaos, lambda replicas: len(replicas) == 2)],
        )
        if ids == before:
            return
        await asyncio.sleep(STEADY_S)


async def ready(
    chaos: Chaos, enough: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    """The ready replicas, once there are enough."""
    async with asyncio.timeout(READY_S):
        while True:
            replicas = [
                each for each in (await chaos.get("/v1/deployments/m"))["replicas"] if each["ready"]
            ]
            if enough(replicas):
                return replicas
            await asyncio.sleep(0.1)


class Load:
    """Clients that ask on and on, half of them for streams.

    `broken` are streams that ended with an error object.
    """

    def __init__(self, chaos: Chaos) -> None:
        self.chaos = chaos
        self.whole = 0
        self.broken: list[str] = []
        self.failed: list[str] = []
        self.stop = False

    async def client(self, number: int) -> None:
        streams = number % 2 == 0
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "one two three four five"}],
            "stream": streams,
        }
        while not self.stop:
            async with self.chaos.session.post(CHAT, json=body) as response:
                text = await response.text()
            if response.status == 200 and (
                text.endswith("data: [DONE]\n\n") if streams else json.loads(text)["choices"]
            ):
                self.whole += 1
            elif (
                response.status == 200
                and streams
                and '"upstream_error"' in text
                and text.startswith("data: {")
            ):
                self.broken.append(text)
            else:
                self.failed.append(f"{response.status} {text}")

    async def during(self, act: Awaitable[None]) -> None:
        tasks = [asyncio.create_task(self.client(number)) for number in range(CLIENTS)]
        try:
            await act
        finally:
            self.stop = True
            await asyncio.gather(*tasks)

    async def goes_on(self, requests: int = 200) -> None:
        """So many more are answered."""
        target = self.whole + requests
        async with asyncio.timeout(READY_S):
            while self.whole < target:
                await asyncio.sleep(0.02)


async def history(chaos: Chaos) -> str:
    """Return the last facts, to explain a failure."""
    return "\n".join(
        json.dumps(event)[:400] for event in (await chaos.get("/v1/events", last="40"))["events"]
    )


def kill(chaos: Chaos, name: str) -> None:
    ticket = chaos.ticket(name)
    assert ticket is not None
    os.kill(ticket.pid, signal.SIGKILL)


def kill_replica(port: int) -> None:
    """The process of this test's own that was told to listen there."""
    told = f"{SERVER}\0--port\0{port}\0".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if told in (folder / "cmdline").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)
                return
        except OSError:
            continue
    raise AssertionError(f"no process of this test serves port {port}")


@pytest.mark.timeout(300)
async def test_requests_go_on_while_the_log_the_scheduler_and_a_replica_are_killed(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, nodes=1, gpus=4) as chaos:
        await deployed(chaos)
        load = Load(chaos)

        async def killing() -> None:
            await load.goes_on()
            kill(chaos, "scheduler")
            await load.goes_on()
            kill(chaos, "nats-server")
            await load.goes_on()
            victim = (await ready(chaos, lambda replicas: len(replicas) == 2))[0]
            kill_replica(victim["port"])
            await load.goes_on()
            await ready(
                chaos,
                lambda replicas: (
                    len(replicas) == 2 and victim["id"] not in [each["id"] for each in replicas]
                ),
            )
            await load.goes_on()

        await load.during(killing())
        assert load.failed == [], await history(chaos)
        assert len(load.broken) <= CLIENTS // 2


@pytest.mark.timeout(300)
async def test_the_current_client_works_against_a_deployed_model(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=1, gpus=4) as chaos:
        await deployed(chaos)
        url, key = address(chaos)
        async with openai.AsyncOpenAI(base_url=url + "/v1", api_key=key, max_retries=0) as client:
            chat = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hello there"}]
            )
            assert chat.choices[0].message.content == "You said: hello there"
            assert chat.system_fingerprint == "muster-stand-in"
            vector = (await client.embeddings.create(model="m", input="hello")).data[0].embedding
            assert len(vector) == 64


@needs_old_client
@pytest.mark.timeout(300)
async def test_the_old_client_works_against_a_deployed_model(
    tmp_path: Path, old_python: Path
) -> None:
    async with running(tmp_path, nodes=1, gpus=4) as chaos:
        await deployed(chaos)
        url, key = address(chaos)
        line = [str(old_python), str(Path(__file__).with_name("openai_old_client.py")), url, key]
        done = await asyncio.to_thread(
            subprocess.run, line, capture_output=True, text=True, timeout=RUN_S
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["chat"], found["words"], found["models"]) == (
            "You said: hi",
            "You said: hi",
            ["m"],
        )
