"""Round trip and throughput of links in the guest, over RDMA and TCP, as lines of JSON.

The guest is emulated: the figures show that it works, not how fast it is.
"""

import json
import secrets
import statistics
import threading
import time

from libs.job.transport.access import SharedKey
from libs.job.transport.errors import LinkError
from libs.job.transport.link import Link
from libs.job.transport.memory import allocate
from libs.job.transport.transports import RdmaTransport, TcpTransport, Transport

KEY = secrets.token_bytes(32)
PINGS = 100
MESSAGES = 32
MIB = 1 << 20


def say(figure: str, value: float, unit: str, n: int) -> None:
    line = {"figure": figure, "value": round(value, 3), "unit": unit, "n": n}
    print(json.dumps(line), flush=True)


def measure(name: str, dialler: Transport, listener: Transport) -> None:
    with (
        listener.listen("127.0.0.1") as found,
        dialler.connect(found.address) as left,
        found.accept() as right,
    ):
        peer = threading.Thread(target=serve, args=(right,))
        peer.start()
        small, large = allocate(64), allocate(MIB)
        taken = []
        for _ in range(PINGS):
            begun_s = time.perf_counter()
            left.send(small)
            left.recv().release()
            taken.append((time.perf_counter() - begun_s) * 1e6)
        say(f"guest_{name}_round_trip_us", statistics.median(taken), "us", PINGS)
        begun_s = time.perf_counter()
        for _ in range(MESSAGES):
            left.send(large)
        left.flush()
        rate = MESSAGES / (time.perf_counter() - begun_s)
        say(f"guest_{name}_send_mib_per_s", rate, "MiB/s", MESSAGES)
        peer.join()
        regions(name, left, right)


def serve(link: Link) -> None:
    for _ in range(PINGS):
        with link.recv() as message:
            link.send(message.view)
            link.flush()
    for _ in range(MESSAGES):
        link.recv().release()


def regions(name: str, left: Link, right: Link) -> None:
    size = 16 * MIB
    remote = right.register(allocate(size), readable=True, writable=True).remote
    data = allocate(size)
    left.register(data)
    begun_s = time.perf_counter()
    left.write(remote, data)
    left.flush()
    rate = size / MIB / (time.perf_counter() - begun_s)
    say(f"guest_{name}_write_mib_per_s", rate, "MiB/s", 1)
    begun_s = time.perf_counter()
    left.read(remote, data)
    rate = size / MIB / (time.perf_counter() - begun_s)
    say(f"guest_{name}_read_mib_per_s", rate, "MiB/s", 1)


def main() -> None:
    """Print the figures."""
    sides = [SharedKey(KEY, name) for name in ("dialler", "listener")]
    measure("tcp", TcpTransport(sides[0]), TcpTransport(sides[1]))
    try:
        one, other = RdmaTransport(sides[0]), RdmaTransport(sides[1])
    except LinkError as error:
        print(error)
        return
    measure("rdma", one, other)


if __name__ == "__main__":
    main()
