"""What the gateway adds to a request to a model: time, processor time, memory; direct and through it in one run.

A whole cluster with a cheap backend deployed as a model of two replicas, and the load in this process, in a closed loop; direct and
through take turns, so that a noisy moment hits both. A stream has 50 chunks, written one by one without a pause, but for
`first_token_added_p99_ms`, where they come as a model makes them. BACKEND=example takes the example server instead, which
costs more itself (its streams come without a pause).
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import uvloop

from bench import http_load
from bench.cluster import QUICK, Cluster, client, cpu_of, quantile, running, say
from bench.http_load import Load

PATH = "/v1/chat/completions"
CLIENTS = (1, 16, 64)
ROUNDS = 2 if QUICK else 5
ROUND_S = 0.7 if QUICK else 2.0
SLOW_S = 4.0 if QUICK else 15.0
# A slow stream takes about so long: clients begin over that time, for they would else all begin at the same moment again and again.
SPREAD_S = 0.5
MEMORY_REQUESTS = 20_000 if QUICK else 1_000_000
START_S = 30.0
BACKEND = os.environ.get("BACKEND", "cheap")
BACKENDS = {
    "cheap": (str(Path(__file__).with_name("model_backend.py")), "{port}"),
    "example": (str(Path(__file__).parent.parent / "examples" / "model_server.py"), "--port", "{port}", "--model", "m"),
}
STEADY_S = 1.5
TALK = b'"messages":[{"role":"user","content":"' + b"Tell me about it. " * 20 + b'"}]'
PLAIN = b'{"model":"m",' + TALK + b"}"
STREAM = b'{"model":"m","stream":true,' + TALK + b"}"
SLOW = b'{"model":"m","stream":true,"slow":true,' + TALK + b"}"


class Rig(NamedTuple):
    """Where the load goes, and the gateway's process."""

    direct: tuple[int, ...]
    through: tuple[int, ...]
    gateway: int
    key: str


@contextmanager
def rig() -> Iterator[Rig]:
    """A whole cluster with the backend deployed as a model of two replicas, ended with the block."""
    with running(nodes=1) as cluster:
        asyncio.run(deploy(cluster, {"name": "m", "replicas": 2, "command": [sys.executable, *BACKENDS[BACKEND]]}))
        replicas = asyncio.run(ready(cluster))
        gateway = next(process for name, process in cluster.processes.items() if name.startswith("gateway"))
        yield Rig(tuple(replicas), (int(cluster.url.rsplit(":", 1)[1]),), gateway.pid, cluster.key)


async def deploy(cluster: Cluster, deployment: dict[str, Any]) -> None:
    async with client(cluster) as session, session.post("/v1/deployments", json=deployment) as answer:
        assert answer.status == 201, await answer.text()


async def ready(cluster: Cluster) -> list[int]:
    """The ports of the replicas, once all are ready and stay so (one whose port something else has taken ends at once)."""
    ports: list[int] = []
    async with client(cluster) as session, asyncio.timeout(START_S):
        while True:
            async with session.get("/v1/deployments/m") as answer:
                shown = await answer.json()
            before, ports = ports, [each["port"] for each in shown["replicas"] if each["ready"]]
            if ports == before and shown["state"] == "ready":
                return ports
            await asyncio.sleep(STEADY_S)


def load(rig: Rig, ports: tuple[int, ...], body: bytes, clients: int, seconds: float, spread_s: float = 0.0) -> Load:
    return uvloop.run(http_load.run(ports, http_load.request(PATH, rig.key, body), clients, seconds, spread_s))


def memory_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def measure(found: Rig, name: str, request: bytes) -> None:
    """One kind of request: throughput at each number of clients, what one client waits longer, and processor time."""
    for clients in CLIENTS:
        rates: dict[tuple[int, ...], list[float]] = {found.direct: [], found.through: []}
        middles: dict[tuple[int, ...], list[float]] = {found.direct: [], found.through: []}
        cpu_s, served = 0.0, 0
        for _ in range(ROUNDS):
            for ports in (found.direct, found.through):
                before = cpu_of(found.gateway, children=False)
                done = load(found, ports, request, clients, ROUND_S)
                rates[ports].append(len(done.whole) / ROUND_S)
                middles[ports].append(quantile(done.whole, 0.5) * 1_000)
                if ports == found.through:
                    cpu_s += cpu_of(found.gateway, children=False) - before
                    served += len(done.whole)
        setting = {"clients": clients, "rounds": ROUNDS, "body_bytes": len(request), "backend": BACKEND}
        say(f"{name}requests_per_s", median(rates[found.through]), "1/s", served, **setting)
        say(f"{name}direct_requests_per_s", median(rates[found.direct]), "1/s", served, **setting)
        say(f"{name}added_p50_ms", median(middles[found.through]) - median(middles[found.direct]), "ms", served, **setting)
        say(f"{name}cpu_ms_per_request", cpu_s * 1_000 / served, "ms", served, **setting)


def first_token(found: Rig) -> None:
    """Streams as a model makes them, 64 at once: how much later the first event comes."""
    waits = {ports: load(found, ports, SLOW, 64, SLOW_S, SPREAD_S).first for ports in (found.direct, found.through)}
    for part, name in ((0.5, "p50"), (0.99, "p99")):
        added = (quantile(waits[found.through], part) - quantile(waits[found.direct], part)) * 1_000
        say(f"first_token_added_{name}_ms", added, "ms", len(waits[found.through]), clients=64, chunks=50, gap_ms=10)


def memory(found: Rig) -> None:
    before, served = memory_mib(found.gateway), 0
    while served < MEMORY_REQUESTS:
        served += len(load(found, found.through, PLAIN, 64, 2.0).whole)
        served += len(load(found, found.through, STREAM, 64, 1.0).whole)
    say("memory_mib", memory_mib(found.gateway), "MiB", served, before_mib=round(before, 1))


def main() -> None:
    with rig() as found:
        for request in (PLAIN, STREAM):
            load(found, found.through, request, 16, 0.5)
        measure(found, "", PLAIN)
        measure(found, "stream_", STREAM)
        first_token(found)
        memory(found)


if __name__ == "__main__":
    main()
