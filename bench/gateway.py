"""What the gateway adds to a request to a model: time, processor time, memory; direct and through it in one run.

A backend process with two replicas, the gateway's process, and the load in this one, in a closed loop; direct and through take turns, so
that a noisy moment hits both. A stream has 50 chunks, written at once but for `first_token_added_p99_ms`, where they come as a model
makes them.
"""

import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench import http_load
from bench.cluster import QUICK, cpu_of, end, quantile, say
from bench.http_load import Load
from libs.embedded.living import die_with_parent
from libs.embedded.servers import free_ports
from services.api_gateway.auth import hash_key

PATH = "/v1/chat/completions"
KEY = "bench-key"
CLIENTS = (1, 16, 64)
ROUNDS = 2 if QUICK else 5
SECONDS = 1.0 if QUICK else 3.0
SLOW_SECONDS = 4.0 if QUICK else 15.0
MEMORY_REQUESTS = 20_000 if QUICK else 1_000_000
START_S = 20.0
TALK = b'"messages":[{"role":"user","content":"' + b"Tell me about it. " * 20 + b'"}]'
PLAIN = http_load.request(PATH, KEY, b'{"model":"m",' + TALK + b"}")
STREAM = http_load.request(PATH, KEY, b'{"model":"m","stream":true,' + TALK + b"}")
SLOW = http_load.request(PATH, KEY, b'{"model":"m","stream":true,"slow":true,' + TALK + b"}")


class Rig(NamedTuple):
    """Where the load goes, and the gateway's process."""

    direct: int
    through: int
    gateway: int


@contextmanager
def rig() -> Iterator[Rig]:
    """Backend and gateway, ended with the block."""
    first, second, port = free_ports(3)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        keys = Path(folder) / "keys"
        keys.write_text("".join(f"{hash_key(f'other-{number}')}\n" for number in range(200)) + f"{hash_key(KEY)} bench\n")
        lines = (
            [sys.executable, "-m", "bench.model_backend", str(first), str(second)],
            [sys.executable, "-m", "bench.model_gateway", str(port), str(keys), str(first), str(second)],
        )
        processes = [subprocess.Popen(line, preexec_fn=die_with_parent()) for line in lines]
        try:
            await_ready(port)
            yield Rig(first, port, processes[1].pid)
        finally:
            end(processes)


def await_ready(port: int) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=1):
                return
        except (OSError, urllib.error.HTTPError):
            time.sleep(0.05)
    raise TimeoutError(f"the gateway was not ready within {START_S} s")


def load(port: int, request: bytes, clients: int, seconds: float) -> Load:
    return uvloop.run(http_load.run(port, request, clients, seconds))


def memory_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def measure(found: Rig, name: str, request: bytes) -> None:
    """One kind of request: throughput at each number of clients, what one client waits longer, and processor time."""
    for clients in CLIENTS:
        rates: dict[int, list[float]] = {found.direct: [], found.through: []}
        middles: dict[int, list[float]] = {found.direct: [], found.through: []}
        cpu_s, served = 0.0, 0
        for _ in range(ROUNDS):
            for port in (found.direct, found.through):
                before = cpu_of(found.gateway, children=False)
                done = load(port, request, clients, SECONDS / ROUNDS * 2)
                rates[port].append(len(done.whole) / (SECONDS / ROUNDS * 2))
                middles[port].append(quantile(done.whole, 0.5) * 1_000)
                if port == found.through:
                    cpu_s += cpu_of(found.gateway, children=False) - before
                    served += len(done.whole)
        setting = {"clients": clients, "rounds": ROUNDS, "body_bytes": len(request)}
        say(f"{name}requests_per_s", quantile(rates[found.through], 0.5), "1/s", served, **setting)
        say(f"{name}direct_requests_per_s", quantile(rates[found.direct], 0.5), "1/s", served, **setting)
        say(f"{name}added_p50_ms", quantile(middles[found.through], 0.5) - quantile(middles[found.direct], 0.5), "ms", served, **setting)
        say(f"{name}cpu_ms_per_request", cpu_s * 1_000 / served, "ms", served, **setting)


def first_token(found: Rig) -> None:
    """Streams as a model makes them, 64 at once: how much later the first event comes."""
    waits = {port: load(port, SLOW, 64, SLOW_SECONDS).first for port in (found.direct, found.through)}
    for part, name in ((0.5, "p50"), (0.99, "p99")):
        added = (quantile(waits[found.through], part) - quantile(waits[found.direct], part)) * 1_000
        say(f"first_token_added_{name}_ms", added, "ms", len(waits[found.through]), clients=64, chunks=50, gap_ms=10)


def memory(found: Rig) -> None:
    before, served = memory_mib(found.gateway), 0
    while served < MEMORY_REQUESTS:
        served += len(load(found.through, PLAIN, 64, 2.0).whole)
        served += len(load(found.through, STREAM, 64, 1.0).whole)
    say("memory_mib", memory_mib(found.gateway), "MiB", served, before_mib=round(before, 1))


def main() -> None:
    with rig() as found:
        for request in (PLAIN, STREAM):
            load(found.through, request, 16, 0.5)
        measure(found, "", PLAIN)
        measure(found, "stream_", STREAM)
        first_token(found)
        memory(found)


if __name__ == "__main__":
    main()
