"""Cost of spans: jobs and requests per second, and processor time, with a collector and without.

Two clusters run beside each other, one with a collector, and the load goes to them in turns, so
that a noisy moment hits both. The collector here only reads what it gets. Jobs and requests are
recorded at the default percentages, and then all requests are. Each figure is the median of the
rounds' ratios; the setting has the range from the lowest to the highest.
"""

import asyncio
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Final, NamedTuple

import uvloop

from bench import http_load
from bench.cluster import QUICK, Cluster, client, cpu_of, last_lines, running, say
from bench.gateway import BACKENDS, PATH, PLAIN, STREAM, deploy, ready
from bench.throughput import run

ROUNDS: Final = 3 if QUICK else 8
JOBS: Final = 150 if QUICK else 600
REQUESTS_S: Final = 1.0 if QUICK else 4.0
CLIENTS: Final = 16
NODES: Final = 2
EVERY: Final = {"MUSTER_SPAN_REQUEST_PERCENT": "100"}
ANSWER: Final = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n"
)
LENGTH: Final = b"content-length:"


class Sink(asyncio.Protocol):
    """A collector that reads requests and forgets them."""

    taken = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.head, self.left = b"", -1

    def data_received(self, data: bytes) -> None:
        if self.left < 0:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            fields = self.head[:end].lower()
            length = fields[fields.index(LENGTH) + len(LENGTH) :].split(b"\r\n")[0]
            self.left, data = int(length), self.head[end + 4 :]
        self.left -= len(data)
        if self.left == 0:
            Sink.taken += 1
            self.head, self.left = b"", -1
            assert isinstance(self.transport, asyncio.Transport)
            self.transport.write(ANSWER)


@contextmanager
def sink() -> Iterator[str]:
    """Run the collector in a thread; its address."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(loop.create_server(Sink, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


class Done(NamedTuple):
    """One turn: how many per second, and the processor time of one, in milliseconds."""

    per_s: float
    cpu_ms: float


def jobs(cluster: Cluster) -> Done:
    before = sum(cluster.cpu_s().values())
    took_s, _ = asyncio.run(run(cluster, JOBS))
    used_s = sum(cluster.cpu_s().values()) - before
    return Done(JOBS / took_s, used_s * 1_000 / JOBS)


def requests(cluster: Cluster, body: bytes) -> Done:
    gateway = next(pid for name, pid in _pids(cluster) if name.startswith("gateway"))
    port = int(cluster.url.rsplit(":", 1)[1])
    before = cpu_of(gateway, children=False)
    request = http_load.request(PATH, cluster.key, body)
    done = uvloop.run(http_load.run((port,), request=request, clients=CLIENTS, seconds=REQUESTS_S))
    assert not done.refused, done.refused[0]
    used_s = cpu_of(gateway, children=False) - before
    return Done(len(done.whole) / REQUESTS_S, used_s * 1_000 / len(done.whole))


def _pids(cluster: Cluster) -> list[tuple[str, int]]:
    return [(name, process.pid) for name, process in cluster.processes.items()]


def compare(
    name: str, without: Cluster, recorded: Cluster, turn: Callable[[Cluster], Done]
) -> None:
    """Print how much less is done, and how much more processor time is used, with spans."""
    slower: list[float] = []
    dearer: list[float] = []
    for number in range(ROUNDS):
        order = (without, recorded) if number % 2 else (recorded, without)
        found = {id(cluster): turn(cluster) for cluster in order}
        off, on = found[id(without)], found[id(recorded)]
        slower.append((off.per_s / on.per_s - 1) * 100)
        dearer.append((on.cpu_ms / off.cpu_ms - 1) * 100)
    for figure, values in ((f"{name}_slower_pct", slower), (f"{name}_cpu_more_pct", dearer)):
        low, high = round(min(values), 2), round(max(values), 2)
        say(figure, median(values), "%", ROUNDS, low=low, high=high)


async def deployed(cluster: Cluster) -> None:
    command = [sys.executable, *BACKENDS["cheap"]]
    await deploy(cluster, {"name": "m", "replicas": 2, "command": command})
    await ready(cluster)


async def traced(cluster: Cluster) -> None:
    async with (
        client(cluster) as session,
        session.post("/v1/jobs", json={"command": ["true"]}) as answer,
    ):
        assert "x-trace-id" in answer.headers, "the cluster records no spans"


def measure(url: str, percent: dict[str, str], suffix: str) -> None:
    told = {"MUSTER_OTLP_ENDPOINT": url, **percent}
    with running(nodes=NODES) as without, running(nodes=NODES, environment=told) as recorded:
        asyncio.run(traced(recorded))
        for cluster in (without, recorded):
            asyncio.run(deployed(cluster))
            requests(cluster, PLAIN)
        try:
            if not percent:
                compare("throughput", without, recorded, jobs)
            compare(f"gateway{suffix}", without, recorded, lambda cluster: requests(cluster, PLAIN))
            compare(f"gateway_stream{suffix}", without, recorded, lambda one: requests(one, STREAM))
        except OSError:
            for cluster in (without, recorded):
                print(last_lines(cluster.state / "logs"), file=sys.stderr)
            raise


def main() -> None:
    with sink() as url:
        measure(url, {}, "")
        measure(url, EVERY, "_every_request")
        say("batches_taken", Sink.taken, "count", 1)


if __name__ == "__main__":
    main()
