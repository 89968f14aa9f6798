"""gRPC beside REST: submissions, reads and lists of the same jobs over both, in turns.

One process sends the requests of both, in a closed loop, first one at a time and then from several
clients. `gateway_cpu_us` is the gateway's own processor time for one request; the client's is not
counted, but on a small machine both share its cores. At the end many streams are open at once: how
long until each has its first event, and what they cost the gateway in memory.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import grpc
import uvloop

from bench.cluster import QUICK, Cluster, client, cpu_of, quantile, running, say
from libs.rpc.messages import class_of, message, services

ROUNDS = 2 if QUICK else 5
ROUND_S = 0.7 if QUICK else 3.0
CLIENTS = (1, 16)
LISTED = 200
STREAMS = 200 if QUICK else 1_000
# One tenant may follow with so many clients by default.
STREAMS_AT_ONCE = 250
JOB = {"command": ["true"], "gpus": 1, "hold": True}
Ask = Callable[[], Awaitable[Any]]


class Rpc:
    """Calls of one channel."""

    def __init__(self, channel: grpc.aio.Channel, key: str) -> None:
        self.channel = channel
        self.metadata = (("authorization", f"Bearer {key}"),)

    def method(self, name: str, kind: str = "unary_unary") -> Callable[..., Any]:
        service, _, method = name.partition("/")
        found = services()[f"muster.v1.{service}"].methods_by_name[method]
        begin = getattr(self.channel, kind)(
            f"/muster.v1.{name}",
            request_serializer=class_of(found.input_type).SerializeToString,
            response_deserializer=class_of(found.output_type).FromString,
        )
        return lambda request: begin(request, metadata=self.metadata)


async def json_of(answer: Any) -> Any:
    async with answer as response:
        body = await response.json()
        assert response.status in (200, 201), body
        return body


def asks(session: aiohttp.ClientSession, rpc: Rpc, job: str) -> dict[str, tuple[Ask, Ask]]:
    """The same request over REST and over gRPC, by name."""
    submit, get = rpc.method("Jobs/SubmitJob"), rpc.method("Jobs/GetJob")
    listed = rpc.method("Jobs/ListJobs")
    kind, shown, page = (
        message(name) for name in ("SubmitJobRequest", "GetJobRequest", "ListJobsRequest")
    )
    return {
        "get": (
            lambda: json_of(session.get(f"/v1/jobs/{job}")),
            lambda: get(shown(ref=job)),
        ),
        "submit": (
            lambda: json_of(session.post("/v1/jobs", json=JOB)),
            lambda: submit(kind(**JOB)),
        ),
        f"list_{LISTED}": (
            lambda: json_of(session.get("/v1/jobs", params={"limit": str(LISTED)})),
            lambda: listed(page(limit=LISTED)),
        ),
    }


async def loop(ask: Ask, clients: int) -> list[float]:
    """Times of requests that `clients` sent one after the other, in milliseconds."""
    until, times = time.monotonic() + ROUND_S, []

    async def one() -> None:
        while time.monotonic() < until:
            began = time.perf_counter()
            await ask()
            times.append((time.perf_counter() - began) * 1e3)

    await asyncio.gather(*(one() for _ in range(clients)))
    return times


async def compare(name: str, pair: tuple[Ask, Ask], clients: int, gateway: int) -> None:
    """Measure both in turns, and say the medians of the rounds."""
    found: dict[str, list[tuple[float, float, float, float]]] = {"rest": [], "grpc": []}
    for _ in range(ROUNDS):
        for way, ask in zip(("rest", "grpc"), pair, strict=True):
            used, began = cpu_of(gateway, children=False), time.perf_counter()
            times = await loop(ask, clients)
            wall_s = time.perf_counter() - began
            cost_us = (cpu_of(gateway, children=False) - used) / len(times) * 1e6
            row = (quantile(times, 0.5), quantile(times, 0.99), len(times) / wall_s, cost_us)
            found[way].append(row)
    for way, rows in found.items():
        p50, p99, rate, cost_us = (median(row[place] for row in rows) for place in range(4))
        say(f"{name}_{way}_p50_ms", p50, "ms", ROUNDS, clients=clients)
        say(f"{name}_{way}_p99_ms", p99, "ms", ROUNDS, clients=clients)
        say(f"{name}_{way}_per_s", rate, "1/s", ROUNDS, clients=clients)
        say(f"{name}_{way}_gateway_cpu_us", cost_us, "us", ROUNDS, clients=clients)


def memory_mib(pid: int) -> float:
    rows = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("VmRSS")) / 1_024


async def streams(cluster: Cluster, session: aiohttp.ClientSession, gateway: int) -> None:
    """Open followers of several tenants, record one job of each, and wait until all saw it."""
    tenants = [f"t{number}" for number in range(-(-STREAMS // STREAMS_AT_ONCE))]
    keys = []
    for tenant in tenants:
        await json_of(session.put(f"/v1/tenants/{tenant}", json={}))
        body = {"user": "ada", "tenant": tenant, "role": "member"}
        keys.append((await json_of(session.post("/v1/keys", json=body)))["key"])
    before = memory_mib(gateway)
    async with grpc.aio.insecure_channel(cluster.grpc) as channel:
        clients = [Rpc(channel, keys[number % len(keys)]) for number in range(STREAMS)]
        request = message("FollowEventsRequest")()
        began = time.perf_counter()
        calls = [each.method("Events/FollowEvents", "unary_stream")(request) for each in clients]
        await asyncio.gather(*(call.initial_metadata() for call in calls))
        say("streams_open_s", time.perf_counter() - began, "s", STREAMS)
        began = time.perf_counter()
        submit = message("SubmitJobRequest")(**JOB)
        await asyncio.gather(
            *(Rpc(channel, key).method("Jobs/SubmitJob")(submit) for key in keys),
            *(call.read() for call in calls),
        )
        say("streams_all_saw_a_fact_s", time.perf_counter() - began, "s", STREAMS)
        say("streams_memory_kib_each", (memory_mib(gateway) - before) * 1_024 / STREAMS, "KiB", 1)
        for call in calls:
            call.cancel()


async def measure(cluster: Cluster) -> None:
    gateway = next(each.pid for name, each in cluster.processes.items() if name == "gateway")
    async with client(cluster) as session, grpc.aio.insecure_channel(cluster.grpc) as channel:
        rpc = Rpc(channel, cluster.key)
        jobs = [(await json_of(session.post("/v1/jobs", json=JOB)))["id"] for _ in range(LISTED)]
        for clients in CLIENTS:
            for name, pair in asks(session, rpc, jobs[0]).items():
                await compare(name, pair, clients, gateway)
        await streams(cluster, session, gateway)


def main() -> None:
    with running(nodes=1, grpc=True) as cluster:
        uvloop.run(measure(cluster))


if __name__ == "__main__":
    main()
