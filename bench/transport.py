"""Speed of a TCP link over loopback, beside a plain connection in C in the same run.

Two processes: this one sends, a child receives. `tcp_ratio` is the link's throughput for messages
of 1 MiB as a part of that of transport.c (`cc`), which checks nothing; checksum and credit are
included in the link's. Runs alternate, and the median of their ratios counts. `copies` is the peak
of memory that Python allocated while a message was sent and received, in messages of 1 MiB.
"""

import multiprocessing
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.cluster import QUICK, say
from libs.job.transport import checksums
from libs.job.transport.access import SharedKey
from libs.job.transport.link import Link
from libs.job.transport.memory import allocate
from libs.job.transport.transports import TcpTransport

KEY: Final = b"the key of the benchmark"
MESSAGE_BYTES: Final = 1 << 20
MESSAGES: Final = 500 if QUICK else 4_000
PINGS: Final = 500 if QUICK else 5_000
RUNS: Final = 3 if QUICK else 5
GIB: Final = 1 << 30
LATE_S: Final = 60


def peer(port: Any, pings: bool, count: int) -> None:
    """Receive messages, or return each; in a process of its own."""
    with TcpTransport(SharedKey(KEY, "peer")).listen("127.0.0.1") as listener:
        port.send(listener.address)
        with listener.accept() as link:
            for _ in range(count):
                with link.recv() as message:
                    if pings:
                        link.send(message.view)
            port.recv()


@contextmanager
def linked(pings: bool, count: int) -> Iterator[Link]:
    """A link to a process that receives so many messages."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=peer, args=(there, pings, count), daemon=True)
    process.start()
    try:
        with TcpTransport(SharedKey(KEY, "bench")).connect(here.recv()) as link:
            yield link
            here.send("end")
    finally:
        process.join(LATE_S)
        process.kill()


def throughput() -> float:
    """Bytes per second of messages of 1 MiB."""
    data = allocate(MESSAGE_BYTES)
    data[:] = bytes(range(256)) * (MESSAGE_BYTES // 256)
    with linked(False, MESSAGES) as link:
        begun_s = time.perf_counter()
        for _ in range(MESSAGES):
            link.send(data)
        link.flush(within_s=LATE_S)
        return MESSAGES * MESSAGE_BYTES / (time.perf_counter() - begun_s)


def round_trips() -> float:
    """Microseconds of 64 bytes there and back, the median."""
    data = allocate(64)
    taken = []
    with linked(True, PINGS) as link:
        for _ in range(PINGS):
            begun_s = time.perf_counter()
            link.send(data)
            link.recv().release()
            taken.append((time.perf_counter() - begun_s) * 1e6)
    return statistics.median(taken)


def copies() -> float:
    """The peak of what Python allocated for one message, in messages; both sides are here."""
    data = allocate(MESSAGE_BYTES)
    with (
        TcpTransport(SharedKey(KEY, "b")).listen("127.0.0.1") as listener,
        TcpTransport(SharedKey(KEY, "a")).connect(listener.address) as left,
        listener.accept() as right,
    ):
        for traced in (False, True):
            if traced:
                tracemalloc.start()
            for _ in range(8):
                left.send(data)
                right.recv().release()
        left.flush()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak / MESSAGE_BYTES


def compiled(folder: str) -> str:
    """The program in C; empty where no compiler is."""
    compiler = shutil.which("cc")
    if not compiler:
        print("no C compiler here (cc): the peer is skipped", file=sys.stderr)
        return ""
    target = f"{folder}/transport"
    source = str(Path(__file__).with_name("transport.c"))
    subprocess.run([compiler, "-O2", "-o", target, source], check=True, timeout=60)
    return target


def in_c(program: str, folder: str, serve: str, ask: str, *words: str) -> float:
    """Return what the program in C prints: seconds, or microseconds of a round trip."""
    port = Path(folder) / "port"
    port.unlink(missing_ok=True)
    server = subprocess.Popen([program, serve, str(port), *words])
    by_s = time.monotonic() + LATE_S
    while not (port.exists() and port.read_text().endswith("\n")):
        assert time.monotonic() < by_s
        time.sleep(0.001)
    done = subprocess.run(
        [program, ask, port.read_text().strip(), *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=LATE_S,
    )
    server.wait(LATE_S)
    return float(done.stdout)


def main() -> None:
    """Print the figures."""
    links, plains, trips, plain_trips = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        program = compiled(folder)
        for _ in range(RUNS):
            links.append(throughput())
            trips.append(round_trips())
            if program:
                words = (str(MESSAGE_BYTES), str(MESSAGES))
                taken_s = in_c(program, folder, "receive", "send", *words)
                plains.append(MESSAGES * MESSAGE_BYTES / taken_s)
                plain_trips.append(in_c(program, folder, "echo", "ping", str(PINGS)))
    best = checksums.available()[0]
    say("tcp_gib_per_s", statistics.median(links) / GIB, "GiB/s", RUNS, checksum=best)
    say("round_trip_us", statistics.median(trips), "us", PINGS)
    if plains:
        ratios = [link / plain for link, plain in zip(links, plains, strict=True)]
        say("tcp_ratio", statistics.median(ratios), "of C", RUNS, checksum=best)
        say("c_gib_per_s", statistics.median(plains) / GIB, "GiB/s", RUNS)
        say("c_round_trip_us", statistics.median(plain_trips), "us", PINGS)
    say("copies", copies(), "messages of 1 MiB", 8)


if __name__ == "__main__":
    main()
