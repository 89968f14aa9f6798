"""Cost that the gateway adds to a model request: time, processor time, memory and bytes of log.

The bench starts a whole cluster and deploys a cheap backend as a model with two replicas. This
process sends the load in a closed loop. Direct requests, requests through the gateway and requests
through a bare proxy (`plain_proxy.py`) take turns, so that a noisy moment hits all of them.

Every request through the gateway carries the key of a tenant with limits (too high to refuse) and
is recorded: keys, limits and access audit are on together. A stream has 50 chunks, written one by
one without a pause. For `first_token_added_p99_ms` the chunks come as a model makes them.
BACKEND=example uses the example server instead, which costs more itself; its streams come without a
pause. MEMORY=1 measures memory alone, over a million requests. PEER=nginx or PEER=litellm measures
that gateway and Muster's in turns (`bench/peers/gateways.py`).
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import aiohttp
import uvloop

from bench import http_load, peers
from bench.cluster import QUICK, Cluster, client, cpu_of, quantile, running, say
from bench.http_load import Load
from bench.peers import gateways_in_turns
from bench.peers.gateways import GATEWAYS
from libs.embedded import servers
from services.api_gateway.access.time_shares import ALONE_S

PATH = "/v1/chat/completions"
CLIENTS = (1, 16, 64)
ROUNDS = 2 if QUICK else 5
ROUND_S = 0.4 if QUICK else 2.0
SLOW_S = 4.0 if QUICK else 15.0
# Duration of a slow stream. Clients start spread over this time; otherwise they would all start at
# the same moments.
SPREAD_S = 0.5
MEMORY_ALONE = os.environ.get("MEMORY") == "1"
# Number of requests after which memory and log are measured.
MARKS = (10_000, 100_000, 300_000, 1_000_000) if MEMORY_ALONE else (2_000, 10_000)
MEMORY_ROUND_S = 2.0
START_S = 30.0
# The quota service grants nothing in its first minute.
LIMITED_S = 90.0
LIMITS = {"requests_per_minute": 1_000_000_000, "tokens_per_minute": 1_000_000_000}
BACKEND = os.environ.get("BACKEND", "cheap")
BACKENDS = {
    "cheap": (str(Path(__file__).with_name("model_backend.py")), "{port}"),
    "example": (
        str(Path(__file__).parent.parent / "examples" / "model_server.py"),
        "--port",
        "{port}",
        "--model",
        "m",
    ),
}
STEADY_S = 1.5
# Time in which the last records reach the archive.
SETTLE_S = 2.0
TALK = b'"messages":[{"role":"user","content":"' + b"Tell me about it. " * 20 + b'"}]'
PLAIN = b'{"model":"m",' + TALK + b"}"
STREAM = b'{"model":"m","stream":true,' + TALK + b"}"
SLOW = b'{"model":"m","stream":true,"slow":true,' + TALK + b"}"


class Rig(NamedTuple):
    """The target of the load, the gateway's process and the bare proxy's, the cluster, and a
    limited tenant's key.
    """

    direct: tuple[int, ...]
    through: tuple[int, ...]
    gateway: int
    proxied: tuple[int, ...]
    proxy: int
    cluster: Cluster
    key: str


@contextmanager
def rig() -> Iterator[Rig]:
    """Run a whole cluster with the backend deployed as a model of two replicas, ended with
    the block.
    """
    with running(nodes=1) as cluster:
        asyncio.run(
            deploy(
                cluster,
                {"name": "m", "replicas": 2, "command": [sys.executable, *BACKENDS[BACKEND]]},
            )
        )
        replicas = asyncio.run(ready(cluster))
        gateway = next(
            process for name, process in cluster.processes.items() if name.startswith("gateway")
        )
        with plain_proxy(replicas) as (port, proxy):
            yield Rig(
                direct=tuple(replicas),
                through=(int(cluster.url.rsplit(":", 1)[1]),),
                gateway=gateway.pid,
                proxied=(port,),
                proxy=proxy,
                cluster=cluster,
                key=asyncio.run(limited(cluster)),
            )


@contextmanager
def plain_proxy(replicas: list[int]) -> Iterator[tuple[int, int]]:
    """Run the bare proxy of the replicas; give its port and its pid."""
    (port,) = servers.free_ports(1)
    targets = [f"http://127.0.0.1:{each}" for each in replicas]
    process = subprocess.Popen([sys.executable, "-m", "bench.plain_proxy", str(port), *targets])
    try:
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


async def deploy(cluster: Cluster, deployment: dict[str, Any]) -> None:
    async with (
        client(cluster) as session,
        session.post("/v1/deployments", json=deployment) as answer,
    ):
        assert answer.status == 201, await answer.text()


async def ready(cluster: Cluster) -> list[int]:
    """Return the ports of the replicas, once all are ready and stay so (one whose port something
    else has taken ends at once).
    """
    ports: list[int] = []
    async with client(cluster) as session, asyncio.timeout(START_S):
        while True:
            async with session.get("/v1/deployments/m") as answer:
                shown = await answer.json()
            before, ports = ports, [each["port"] for each in shown["replicas"] if each["ready"]]
            if ports == before and shown["state"] == "ready":
                return ports
            await asyncio.sleep(STEADY_S)


async def tenant(session: aiohttp.ClientSession, **limits: int) -> str:
    """Create a limited tenant and return the key of one of its operators."""
    async with session.put("/v1/tenants/limited", json=limits) as answer:
        assert answer.status in (200, 201), await answer.text()
    async with session.post(
        "/v1/keys", json={"user": "ada", "tenant": "limited", "role": "operator"}
    ) as answer:
        assert answer.status == 201, await answer.text()
        return str((await answer.json())["key"])


async def limited(cluster: Cluster) -> str:
    """Return a limited tenant's key, once its requests are answered and the gateway takes it to be
    alone. Beside another tenant it would get half of the gateway's time.
    """
    async with client(cluster) as session, asyncio.timeout(LIMITED_S):
        key = await tenant(session, **LIMITS)
        alone_s = time.monotonic() + ALONE_S
        while True:
            async with session.post(
                PATH, data=PLAIN, headers={"Authorization": f"Bearer {key}"}
            ) as answer:
                if answer.status == 200:
                    assert "x-ratelimit-limit-tokens" in answer.headers
                    await asyncio.sleep(max(0.0, alone_s - time.monotonic()))
                    return key
            await asyncio.sleep(1.0)


def load(
    rig: Rig,
    ports: tuple[int, ...],
    body: bytes,
    clients: int,
    seconds: float,
    spread_s: float = 0.0,
) -> Load:
    return uvloop.run(
        http_load.run(
            ports,
            request=http_load.request(PATH, rig.key, body),
            clients=clients,
            seconds=seconds,
            spread_s=spread_s,
        )
    )


def memory_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def measure(found: Rig, name: str, request: bytes) -> None:
    """Measure one kind of request: throughput at each number of clients, what one client waits
    longer, and processor time, also beside those of a bare proxy.
    """
    places = (found.direct, found.through, found.proxied)
    pids = {found.through: found.gateway, found.proxied: found.proxy}
    for clients in CLIENTS:
        rates: dict[tuple[int, ...], list[float]] = {ports: [] for ports in places}
        middles: dict[tuple[int, ...], list[float]] = {ports: [] for ports in places}
        costs: dict[tuple[int, ...], list[float]] = {ports: [] for ports in places}
        served = 0
        for _ in range(ROUNDS):
            for ports in places:
                before = cpu_of(pids[ports], children=False) if ports in pids else 0.0
                done = load(rig=found, ports=ports, body=request, clients=clients, seconds=ROUND_S)
                rates[ports].append(len(done.whole) / ROUND_S)
                middles[ports].append(quantile(done.whole, 0.5) * 1_000)
                if ports in pids:
                    spent_s = cpu_of(pids[ports], children=False) - before
                    costs[ports].append(spent_s * 1_000 / len(done.whole))
                served += len(done.whole) if ports == found.through else 0
        setting = {
            "clients": clients,
            "rounds": ROUNDS,
            "body_bytes": len(request),
            "backend": BACKEND,
        }
        say(f"{name}requests_per_s", median(rates[found.through]), "1/s", served, **setting)
        say(f"{name}direct_requests_per_s", median(rates[found.direct]), "1/s", served, **setting)
        say(
            f"{name}added_p50_ms",
            median(middles[found.through]) - median(middles[found.direct]),
            "ms",
            served,
            **setting,
        )
        cost, proxied = median(costs[found.through]), median(costs[found.proxied])
        say(f"{name}cpu_ms_per_request", cost, "ms", served, **setting)
        say(f"{name}proxy_cpu_ms_per_request", proxied, "ms", served, **setting)
        rate = median(rates[found.through]) / median(rates[found.proxied])
        say(f"{name}over_proxy", rate, "", served, **setting)
        say(f"{name}cpu_over_proxy", cost / proxied, "", served, **setting)


def first_token(found: Rig) -> None:
    """Measure how much later the first event comes, in 64 streams at once."""
    waits = {
        ports: load(
            rig=found, ports=ports, body=SLOW, clients=64, seconds=SLOW_S, spread_s=SPREAD_S
        ).first
        for ports in (found.direct, found.through)
    }
    for part, name in ((0.5, "p50"), (0.99, "p99")):
        added = (quantile(waits[found.through], part) - quantile(waits[found.direct], part)) * 1_000
        say(
            f"first_token_added_{name}_ms",
            added,
            "ms",
            len(waits[found.through]),
            clients=64,
            chunks=50,
            gap_ms=10,
        )


def memory(found: Rig) -> None:
    """The gateway's memory and the bytes of log that a recorded request costs, after more and more
    requests.
    """
    served, before_mib, before_bytes = (
        0,
        memory_mib(found.gateway),
        stored_bytes(found.cluster.state),
    )
    for mark in MARKS:
        while served < mark:
            served += len(
                load(
                    rig=found, ports=found.through, body=PLAIN, clients=64, seconds=MEMORY_ROUND_S
                ).whole
            )
            served += len(
                load(
                    rig=found, ports=found.through, body=STREAM, clients=64, seconds=MEMORY_ROUND_S
                ).whole
            )
        time.sleep(SETTLE_S)
        say(
            "memory_mib",
            memory_mib(found.gateway),
            "MiB",
            served,
            before_mib=round(before_mib, 1),
            clients=64,
        )
        for store, size in stored_bytes(found.cluster.state).items():
            say(f"{store}_bytes_per_request", (size - before_bytes[store]) / served, "B", served)


def stored_bytes(state: Path) -> dict[str, int]:
    """Return the bytes on disk of the log, the events for consumers and the archive."""
    streams = state / "nats-1" / "jetstream"
    places = {
        "log": streams.glob("*/streams/FACTS/**/*"),
        "events": streams.glob("*/streams/AUDIT/**/*"),
    }
    archive = (state / "services" / "audit").glob("audit.db*")
    return {
        name: sum(size_of(file) for file in files)
        for name, files in {**places, "archive": archive}.items()
    }


def size_of(path: Path) -> int:
    """Return the size of a file; 0 if it was just replaced."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def main() -> None:
    with rig() as found:
        for request in (PLAIN, STREAM):
            load(rig=found, ports=found.through, body=request, clients=16, seconds=0.5)
        if peers.wants(*GATEWAYS):
            bodies = {"": PLAIN, "stream_": STREAM}
            gateways_in_turns.measure(
                peers.PEER, found.through, found.direct, path=PATH, key=found.key, bodies=bodies
            )
            return
        if not MEMORY_ALONE:
            measure(found, "", PLAIN)
            measure(found, "stream_", STREAM)
            first_token(found)
        memory(found)


if __name__ == "__main__":
    main()
