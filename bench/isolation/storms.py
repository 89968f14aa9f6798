"""The storms of one hostile tenant. `python -m bench.isolation.storms NAME` runs one until SIGTERM.

A storm runs in a process of its own that yields to all others (nice 19), because a real attacker
computes on a machine of its own. Each client sends its next request when the last one is answered,
as fast as the gateway answers. A refusal is an answer: a client that is refused waits as long as
the answer says, at most PATIENCE_S, because a hostile one does not obey.
"""

import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final

import aiohttp

from bench.isolation.calm import CHAT, KEEPALIVE_S

STORM_S: Final = 600.0
STORM_NICE: Final = int(os.environ.get("STORM_NICE") or 19)
PATIENCE_S: Final = 0.02
SETTLE_S: Final = 1.0
CLIENTS: Final = 32
STREAMS: Final = 200
PRELOADED: Final = 2_000
LOG_BYTES: Final = 20_000_000
BODY: Final = "x" * 400_000
OUTCOMES: Counter[str] = Counter()

Storm = Callable[[aiohttp.ClientSession], Coroutine[Any, Any, None]]
Act = Callable[[], Coroutine[Any, Any, None]]


async def ask(session: aiohttp.ClientSession, method: str, path: str, **given: Any) -> bytes:
    """Send a request and return the answer's body; a refusal is an outcome of the storm."""
    async with session.request(method, path, **given) as answer:
        body = await answer.read()
        OUTCOMES[str(answer.status)] += 1
        if answer.status >= 400:
            await asyncio.sleep(PATIENCE_S)
        return body


async def post(session: aiohttp.ClientSession, **fields: Any) -> str:
    """Submit a job and return its id; empty if it was refused."""
    async with session.post("/v1/jobs", json={"command": ["true"], **fields}) as answer:
        body = await answer.json()
        OUTCOMES[str(answer.status)] += 1
        if answer.status >= 400:
            await asyncio.sleep(PATIENCE_S)
        return str(body.get("id", ""))


async def endless(act: Act, clients: int = CLIENTS) -> None:
    """Let so many clients act again and again."""

    async def client() -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                await act()

    print("ready", flush=True)
    await asyncio.gather(*(client() for _ in range(clients)))


async def waiting(session: aiohttp.ClientSession, count: int) -> list[str]:
    """Submit jobs that wait for one that sleeps; return their ids."""
    first = await post(session, command=["sleep", str(int(STORM_S))])
    numbers = iter(range(count))
    found = [first]

    async def client() -> None:
        for _ in numbers:
            found.append(await post(session, after=[f"afterany:{first}"]))

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return found


async def nothing(session: aiohttp.ClientSession) -> None:
    """Send no request."""
    print("ready", flush=True)
    await asyncio.sleep(STORM_S)


async def submissions(session: aiohttp.ClientSession) -> None:
    """Submit jobs that wait."""
    first, *_ = await waiting(session, 0)
    await endless(lambda: discard(post(session, after=[f"afterany:{first}"])))


async def lists(session: aiohttp.ClientSession) -> None:
    """Read long pages of many waiting jobs."""
    await waiting(session, PRELOADED)
    await endless(lambda: discard(ask(session, "GET", "/v1/jobs", params={"limit": "1000"})))


async def streams(session: aiohttp.ClientSession) -> None:
    """Watch all jobs and facts with many clients, while jobs are submitted and cancelled."""
    first, *_ = await waiting(session, 0)

    async def follow(path: str) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(path) as answer:
                    OUTCOMES[str(answer.status)] += 1
                    async for _ in answer.content.iter_any():
                        pass
            await asyncio.sleep(SETTLE_S)

    async def change() -> None:
        job = await post(session, after=[f"afterany:{first}"])
        if job:
            await ask(session, "POST", f"/v1/jobs/{job}/cancel")

    paths = itertools.islice(itertools.cycle(("/v1/watch", "/v1/events?follow=1")), STREAMS)
    following = [asyncio.create_task(follow(path)) for path in paths]
    await asyncio.sleep(SETTLE_S)
    await endless(change, clients=4)
    await asyncio.gather(*following)


async def watches(session: aiohttp.ClientSession) -> None:
    """Begin to watch again and again, and read what is there."""
    await waiting(session, PRELOADED)

    async def begin() -> None:
        async with session.get("/v1/watch") as answer:
            OUTCOMES[str(answer.status)] += 1
            if answer.status >= 400:
                await asyncio.sleep(PATIENCE_S)
            async for line in answer.content:
                if line.startswith(b"event: ready"):
                    return

    await endless(begin)


async def kinds(session: aiohttp.ClientSession) -> None:
    """Submit jobs that all ask for something else: too much, or what the tenant may not have.

    The tenant may use one GPU, which its first job holds.
    """
    await waiting(session, 0)
    chance = random.Random(3)

    async def one() -> None:
        shape = chance.randrange(4)
        fields: dict[str, Any] = {"cpus": chance.randrange(1, 4_000) / 1_000}
        if shape == 0:
            fields |= {"gpus": chance.randrange(9, 17)}
        elif shape == 1:
            fields |= {"gpus": chance.randrange(1, 9), "nodes": chance.randrange(2, 60)}
        elif shape == 2:
            fields |= {"gpus": 1, "gpu_memory_bytes": chance.randrange(1 << 30, 70 << 30)}
        else:
            fields |= {"gpus": 2, "time_limit": f"{chance.randrange(60, 90_000)}s"}
        await post(session, **fields)

    await endless(one)


async def logs(session: aiohttp.ClientSession) -> None:
    """Read a long output again and again."""
    count = str(LOG_BYTES)
    job = await post(session, command=["sh", "-c", f"yes | head -c {count}; sleep {int(STORM_S)}"])
    await asyncio.sleep(2 * SETTLE_S)
    await endless(lambda: discard(ask(session, "GET", f"/v1/jobs/{job}/output")))


async def bodies(session: aiohttp.ClientSession) -> None:
    """Submit jobs whose bodies are nearly as large as the gateway accepts."""
    first, *_ = await waiting(session, 0)
    await endless(lambda: discard(post(session, after=[f"afterany:{first}"], env={"BIG": BODY})))


async def chats(session: aiohttp.ClientSession) -> None:
    """Ask the model that all tenants use."""
    await endless(lambda: discard(ask(session, "POST", "/v1/chat/completions", json=CHAT)))


async def questions(session: aiohttp.ClientSession) -> None:
    """Ask for the newest facts and for explanations."""
    job, *_ = await waiting(session, PRELOADED)
    paths = itertools.cycle(("/v1/events?last=1000&kind=key.revoked", f"/v1/jobs/{job}/why"))
    await endless(lambda: discard(ask(session, "GET", next(paths))))


async def discard(asked: Coroutine[Any, Any, object]) -> None:
    """Await and drop the result."""
    await asked


STORMS: Final[dict[str, Storm]] = {
    "nothing": nothing,
    "submissions": submissions,
    "lists": lists,
    "streams": streams,
    "watches": watches,
    "kinds": kinds,
    "logs": logs,
    "bodies": bodies,
    "chats": chats,
    "questions": questions,
}


async def run(name: str) -> None:
    """Run one storm until SIGTERM, then print the outcomes of its requests."""
    os.nice(STORM_NICE)
    headers = {"Authorization": f"Bearer {os.environ['STORM_KEY']}"}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S)
    unbounded = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        os.environ["STORM_URL"], headers=headers, connector=connector, timeout=unbounded
    ) as session:
        task = asyncio.create_task(STORMS[name](session))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task
    print(" ".join(f"{status}:{count}" for status, count in sorted(OUTCOMES.items())), flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
