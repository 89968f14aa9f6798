"""Two models of two replicas each are asked by many clients through two gateways, while services,
agents, gateways, the log's server and the replicas themselves are killed in turn.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.chaos import lives
from tests.chaos.asking import REQUEST_S, Asking
from tests.chaos.cluster import AGAIN_S, Chaos
from tests.chaos.killing import AGENT, SERVICES, Killing
from tests.chaos.model_checks import Kill
from tests.tidy import ROOT

MODELS: Final = ("red", "blue")
REPLICAS: Final = 2
GATEWAYS: Final = ("gateway", "gateway-b")
READY_S: Final = 60.0
# An end that reaches a client late still belongs to the previous kill.
QUIET_S: Final = 2.0
REPLICA: Final = Path(__file__).with_name("replica.py")
SERVER: Final = ROOT / "examples" / "model_server.py"


async def deploy(chaos: Chaos) -> None:
    for name in MODELS:
        command = [
            sys.executable,
            str(REPLICA),
            str(chaos.lives),
            str(SERVER),
            "--port",
            "{port}",
            "--model",
            name,
            "--token-ms",
            "20",
        ]
        body = {"name": name, "replicas": REPLICAS, "command": command, "startup_timeout_s": "60s"}
        status, answer = await chaos.try_once("POST", "/v1/deployments", json=body)
        assert status == 201, answer
    await ready(chaos)


async def ready(chaos: Chaos) -> dict[str, dict[str, Any]]:
    """Return the models once all are ready, or when that took too long."""
    deadline = time.monotonic() + READY_S
    while True:
        shown = await deployments(chaos)
        if all(each["state"] == "ready" for each in shown.values()) or time.monotonic() > deadline:
            return shown
        await asyncio.sleep(AGAIN_S)


async def deployments(chaos: Chaos) -> dict[str, dict[str, Any]]:
    return {name: await chaos.get(f"/v1/deployments/{name}") for name in MODELS}


async def asked_and_killed(chaos: Chaos, kills: int, seed: int) -> tuple[Asking, Killing]:
    """Send requests until the last kill is over and all models are ready again."""
    chance = random.Random(f"{seed} kills")
    killing = Killing(chaos, chance)
    replicas = [_killer(chaos, name, chance) for name in MODELS]
    targets = ("scheduler", replicas[0], AGENT, GATEWAYS[1], replicas[1], *SERVICES)
    timeout = aiohttp.ClientTimeout(total=REQUEST_S)
    headers = {"Authorization": chaos.session.headers["Authorization"]}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=timeout, headers=headers
    ) as session:
        asking = Asking(session, tuple(zip(GATEWAYS, chaos.urls, strict=True)), MODELS)
        load = asyncio.create_task(asking.run())
        await killing.in_turn(kills, targets)
        await ready(chaos)
        await asyncio.sleep(QUIET_S)
        asking.over = True
        await load
    return asking, killing


def _killer(
    chaos: Chaos, model: str, chance: random.Random
) -> Callable[[], Awaitable[Kill | None]]:
    """Return a function that kills one replica of the model if all its replicas are ready.

    The answers of the others must not be lost.
    """

    async def kill() -> Kill | None:
        shown = (await chaos.get(f"/v1/deployments/{model}"))["replicas"]
        ready = [each["id"] for each in shown if each["ready"]]
        return _kill(chaos, model, chance.choice(ready)) if len(ready) == REPLICAS else None

    return kill


def _kill(chaos: Chaos, model: str, job_id: str) -> Kill:
    """Kill the replica's process, which it named itself in the file of lives."""
    lived = lives.read(chaos.lives.read_text().splitlines())
    pid = next(life.pids[-1] for life in lived.values() if life.job_id == job_id)
    assert str(chaos.lives).encode() in Path(f"/proc/{pid}/cmdline").read_bytes(), (
        f"{job_id} is not the process {pid}"
    )
    os.kill(pid, signal.SIGKILL)
    return Kill(model, time.monotonic_ns())


async def undeploy(chaos: Chaos) -> None:
    """Undeploy the models, because their processes would outlive the cluster."""
    for name in MODELS:
        status = 0
        while status not in (202, 404):
            status, _ = await chaos.try_once("DELETE", f"/v1/deployments/{name}")
            await asyncio.sleep(AGAIN_S)
