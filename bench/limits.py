"""Accuracy of a limit of tokens per minute when many clients ask two gateways for ten times as
much.

The bench starts a whole cluster of processes with two gateways and deploys a cheap backend as a
model. The load begins at the start of a minute. Usage is summed from the answers themselves. The
figures are the amount by which usage exceeds the limit, and the part of the limit that was used.
"""

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import aiohttp

from bench.cluster import QUICK, Cluster, client, running, say
from bench.gateway import deploy, ready, tenant

CLIENTS: Final = 50
REQUESTS: Final = 2_000 if QUICK else 10_000
BODY: Final = {"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": "hi"}]}
# The load must end within its minute, so it starts at the beginning of one.
MINUTE_S: Final = 60


async def one_request(session: aiohttp.ClientSession, url: str) -> tuple[int, int]:
    """Send one request; return its status and the tokens that the answer reports."""
    async with session.post(f"{url}/v1/chat/completions", json=BODY) as answer:
        shown: dict[str, Any] = await answer.json()
        return answer.status, shown["usage"]["total_tokens"] if answer.status == 200 else 0


async def storm(cluster: Cluster, key: str) -> tuple[Counter[int], int]:
    """Send all requests; return their statuses and tokens."""
    statuses: Counter[int] = Counter()
    used = 0
    left = iter(range(REQUESTS))

    async def one_client(session: aiohttp.ClientSession, url: str) -> None:
        nonlocal used
        for _ in left:
            status, tokens = await one_request(session, url)
            statuses[status] += 1
            used += tokens

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, headers={"Authorization": f"Bearer {key}"}
    ) as session:
        await asyncio.gather(
            *(
                one_client(session, cluster.urls[number % len(cluster.urls)])
                for number in range(CLIENTS)
            )
        )
    return statuses, used


async def measure(cluster: Cluster) -> None:
    backend = Path(__file__).with_name("model_backend.py")
    await deploy(
        cluster, {"name": "m", "replicas": 1, "command": [sys.executable, str(backend), "{port}"]}
    )
    await ready(cluster)
    async with (
        client(cluster) as session,
        session.post("/v1/chat/completions", json=BODY) as answer,
    ):
        one = (await answer.json())["usage"]["total_tokens"]
    limit = max(one * REQUESTS // 10, 400)
    async with client(cluster) as session:
        key = await tenant(session, tokens_per_minute=limit)
    await asyncio.sleep(MINUTE_S - time.time() % MINUTE_S + 0.2)
    minute = time.time() // MINUTE_S
    statuses, used = await storm(cluster, key)
    minutes = int(time.time() // MINUTE_S - minute) + 1
    assert statuses[200] + statuses[429] == REQUESTS, statuses
    setting = {
        "limit": limit,
        "clients": CLIENTS,
        "gateways": len(cluster.urls),
        "answered": statuses[200],
        "refused": statuses[429],
    }
    say(
        "tokens_overrun",
        max(0, used - limit * minutes),
        "tokens",
        REQUESTS,
        minutes=minutes,
        **setting,
    )
    say(
        "part_of_limit_used",
        used / (limit * minutes),
        "ratio",
        REQUESTS,
        minutes=minutes,
        **setting,
    )


if __name__ == "__main__":
    with running(nodes=1, gateways=2) as started:
        asyncio.run(measure(started))
