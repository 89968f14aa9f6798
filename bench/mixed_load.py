"""The load of `bench.mixed`: three classes that come as stationary Poisson streams of a fixed seed,
and ask for LOAD of the cluster.

**training**: gangs over one or two nodes, of low priority, that may be preempted and save their
work. **inference**: a model, two replicas to a device, asked by OpenAI's protocol through the
gateway. **interactive**: short jobs before all others.
"""

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp

from bench.cluster import submit

CAPACITY: Final = 32
SEED: Final = 42
LOAD: Final = 7 / 6
TRAINING: Final = "training"
INFERENCE: Final = "inference"
INTERACTIVE: Final = "interactive"
CLASSES: Final = (TRAINING, INFERENCE, INTERACTIVE)

# (nodes, devices per node) of a gang -> its frequency in per cent. A gang computes for at least
# GANG_MIN_S, and an exponential time longer.
GANGS: Final = {(1, 2): 40, (1, 4): 30, (1, 8): 25, (2, 8): 5}
GANG_MIN_S: Final = 15.0
GANG_MORE_S: Final = 60.0
GANG: Final = {
    "priority": 10,
    "preemptible": True,
    "checkpoint_signal": "USR1",
    "checkpoint_grace": "5s",
    "retries": 3,
}
# Devices of an interactive job -> its frequency in per cent; its duration; the part of the load of
# all jobs that interactive jobs are.
DESKS: Final = {1: 70, 2: 30}
DESK_S: Final = 12.0
DESK_PART: Final = 0.05
# The time limits that jobs set. Backfill uses them.
LIMIT_FACTOR: Final = 4 / 3
LIMIT_SLACK_S: Final = 15.0
# Number of gangs that wait at the beginning, so that the cluster fills at once.
BACKLOG: Final = 8

REPLICAS: Final = 6
REPLICA_SHARE: Final = 50
REQUESTS_PER_S: Final = 12.0
TOKEN_MS: Final = 20
TALK: Final = {
    "model": "m",
    "messages": [{"role": "user", "content": "Tell me about it in ten short words, please"}],
}
READY_S: Final = 30.0

HERE: Final = Path(__file__).parent
SERVER: Final = (
    str(HERE.parent / "examples" / "model_server.py"),
    "--port",
    "{port}",
    "--model",
    "m",
    "--token-ms",
    str(TOKEN_MS),
)


class Arrival(NamedTuple):
    """A job to submit `at_s` seconds after the beginning."""

    at_s: float
    name: str
    arguments: tuple[str, ...]
    fields: dict[str, Any]


class Records(NamedTuple):
    """Records of a run: the class of each job, and the seconds that each model request took."""

    classes: dict[str, str]
    answers_s: list[float]


def poisson(chance: random.Random, per_s: float) -> Iterator[float]:
    """Yield the moments of a Poisson process, from 0 on, without end."""
    at_s = 0.0
    while True:
        at_s += chance.expovariate(per_s)
        yield at_s


def arrivals(until_s: float, folder: Path) -> list[Arrival]:
    """Return all jobs in the order in which they come."""
    chance = random.Random(SEED)
    wanted = CAPACITY * LOAD - REPLICAS * REPLICA_SHARE / 100
    gang = (GANG_MIN_S + GANG_MORE_S) * sum(
        nodes * gpus * often / 100 for (nodes, gpus), often in GANGS.items()
    )
    desk = DESK_S * sum(gpus * often / 100 for gpus, often in DESKS.items())
    gangs = takewhile(lambda at_s: at_s < until_s, poisson(chance, wanted * (1 - DESK_PART) / gang))
    desks = takewhile(lambda at_s: at_s < until_s, poisson(chance, wanted * DESK_PART / desk))
    coming = [_gang(chance, at_s, folder) for at_s in (*[0.0] * BACKLOG, *gangs)] + [
        _desk(chance, at_s) for at_s in desks
    ]
    return sorted(coming, key=lambda one: one.at_s)


def _gang(chance: random.Random, at_s: float, folder: Path) -> Arrival:
    nodes, gpus = chance.choices(list(GANGS), list(GANGS.values()))[0]
    seconds = GANG_MIN_S + chance.expovariate(1 / GANG_MORE_S)
    saved = folder / f"{chance.getrandbits(64):016x}"
    return Arrival(
        at_s,
        TRAINING,
        ("train", f"{seconds:.1f}", str(saved)),
        {"nodes": nodes, "gpus": gpus, **_limit(seconds), **GANG},
    )


def _desk(chance: random.Random, at_s: float) -> Arrival:
    gpus = chance.choices(list(DESKS), list(DESKS.values()))[0]
    seconds = chance.expovariate(1 / DESK_S)
    return Arrival(
        at_s,
        INTERACTIVE,
        ("work", f"{seconds:.1f}"),
        {"gpus": gpus, "priority": 90, **_limit(seconds)},
    )


def _limit(seconds: float) -> dict[str, int]:
    return {"time_limit_s": round(seconds * LIMIT_FACTOR + LIMIT_SLACK_S)}


async def submitting(
    session: aiohttp.ClientSession, coming: list[Arrival], records: Records
) -> None:
    began = time.monotonic()
    for one in coming:
        await asyncio.sleep(max(0.0, began + one.at_s - time.monotonic()))
        job = await submit(
            session,
            sys.executable,
            str(HERE / "mixed_job.py"),
            *one.arguments,
            name=one.name,
            **one.fields,
        )
        records.classes[job] = one.name


async def asking(session: aiohttp.ClientSession, records: Records) -> None:
    """Send requests to the model at their times, however long others take; for ever."""
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for at_s in poisson(random.Random(SEED), REQUESTS_PER_S):
            await asyncio.sleep(max(0.0, began + at_s - time.monotonic()))
            tasks.create_task(_ask(session, records))


async def _ask(session: aiohttp.ClientSession, records: Records) -> None:
    began = time.monotonic()
    async with session.post("/v1/chat/completions", json=TALK) as answer:
        text = await answer.text()
        assert answer.status == 200, text
    records.answers_s.append(time.monotonic() - began)


async def deploy(session: aiohttp.ClientSession) -> None:
    """Deploy the model and wait until it is ready."""
    spec = {
        "name": "m",
        "replicas": REPLICAS,
        "gpu_share": REPLICA_SHARE,
        "command": [sys.executable, *SERVER],
    }
    async with session.post("/v1/deployments", json=spec) as answer:
        assert answer.status == 201, await answer.text()
    async with asyncio.timeout(READY_S):
        while True:
            async with session.get("/v1/deployments/m") as answer:
                if (await answer.json())["state"] == "ready":
                    return
            await asyncio.sleep(0.5)
