"""A process that traces as PyTorch's profiler does: it asks its daemon, and writes what it did.

`python traced.py [period]` asks every `period` seconds. Each 10 ms it does a `step` that begins on
a multiple of 10 ms of the wall clock, so that the steps of all ranks are at the same moments.
"""

import json
import os
import socket
import struct
import sys
import time
import uuid

HEADER = struct.Struct("=Q32s")
STEP_NS = 10_000_000
BASE_NS = 1_790_000_000_000_000_000


def asked(sock: socket.socket, folder: str) -> dict[str, str]:
    body = struct.pack("=iiqi", 3, 1, 0, os.getpid())
    sock.sendto(HEADER.pack(len(body), b"req") + body, f"{folder}/dynolog")
    try:
        text = sock.recv(65_536)[HEADER.size :].decode()
    except TimeoutError:
        return {}
    return dict(line.split("=", 1) for line in text.splitlines())


def apart_ns() -> int:
    """Return the monotonic clock minus the wall clock, from the quickest of several readings."""
    best, apart = 1 << 62, 0
    for _ in range(8):
        before, wall, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        if after - before < best:
            best, apart = after - before, (before + after) // 2 - wall
    return apart


def us(at_ns: int) -> float:
    return (at_ns - BASE_NS) / 1_000


def trace(options: dict[str, str]) -> None:
    start_ns = int(options["PROFILE_START_TIME"]) * 1_000_000
    end_ns = start_ns + int(options["ACTIVITIES_DURATION_MSECS"]) * 1_000_000
    events: list[dict[str, object]] = []
    pid = os.getpid()
    while (now_ns := time.time_ns()) < end_ns:
        next_ns = (now_ns // STEP_NS + 1) * STEP_NS
        time.sleep((next_ns - now_ns) / 1e9)
        if next_ns >= start_ns:
            event = {"ph": "X", "cat": "cpu_op", "name": "step", "pid": pid, "tid": pid}
            rank = os.environ.get("RANK", "")
            said = {"at": str(next_ns), "monotonic": str(next_ns + apart_ns()), "rank": rank}
            events.append({**event, "ts": us(next_ns), "dur": 1.5, "args": said})
    path = options["ACTIVITIES_LOG_FILE"].replace(".json", f"_{pid}.json")
    found = {"baseTimeNanoseconds": BASE_NS, "traceEvents": events}
    with open(f"{path}.tmp", "w") as file:
        json.dump(found, file)
    os.rename(f"{path}.tmp", path)


def main() -> None:
    period_s = float(sys.argv[1]) if len(sys.argv) > 1 else 0.1
    folder = os.environ["KINETO_IPC_SOCKET_DIR"]
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind(f"{folder}/dynoconfigclient{uuid.uuid4()}")
    sock.settimeout(0.09)
    print("asks", flush=True)
    while True:
        options = asked(sock, folder)
        if options:
            trace(options)
        time.sleep(period_s)


if __name__ == "__main__":
    main()
