"""A memory broker as a real process, and processes that hold its memory."""

import asyncio
import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from services.node_agent.machine import processes
from services.node_agent.memory.device_memory import HOST_DRIVER, Device
from services.node_agent.memory.grants import HOST, Attempt
from services.node_agent.supervisor import records

MIB = 1 << 20
LIMITS = {0: 64 * MIB, HOST: 16 * MIB}


def memory_of(pid: int) -> dict[int, int]:
    """Return the size of each pool chunk that a process has open, by inode."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd") if os.path.exists(f"/proc/{pid}/fd") else ():
        with contextlib.suppress(OSError):
            if "muster-pool" in os.readlink(f"/proc/{pid}/fd/{name}"):
                status = os.stat(f"/proc/{pid}/fd/{name}")
                found[status.st_ino] = status.st_blocks * 512
    return found


async def until(holds: Callable[[], bool], what: str) -> None:
    for _ in range(1_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(what)


def devices(capacity: dict[int, int]) -> list[Device]:
    """Return devices over host memory, of these sizes by number."""
    return [Device(number, HOST_DRIVER, size) for number, size in capacity.items()]


def attempt(folder: Path, key: str = "job.1", token: bytes = b"secret", pid: int = 0) -> Attempt:
    """Return an attempt whose supervisor is this process, or the one with this pid."""
    job_dir = folder / "jobs" / key
    job_dir.mkdir(parents=True, exist_ok=True)
    pid = pid or os.getpid()
    found = processes.process(pid)
    assert found is not None
    marker = job_dir / records.MARKER
    marker.write_text("{}")
    identity = {
        "pid": pid,
        "start_ticks": found.start_ticks,
        "boot_id": processes.boot_id(),
        "launched_ns": 1,
    }
    assert records.claim(str(job_dir), identity)  # type: ignore[arg-type]
    digest = hashlib.sha256(token).digest()
    return Attempt(
        key=key, tenant="tenant", token=digest, limits=dict(LIMITS), job_dir=str(job_dir)
    )


HOLDER = """
import mmap, os, sys
from libs.job.memory.broker_client import BrokerClient, BrokerError
client = BrokerClient(sys.argv[1], sys.argv[2].encode(), answer_s=20.0)
held = {}
for line in sys.stdin:
    op, *words = line.split()
    try:
        if op == "grant":
            got = client.grant(int(words[0]), int(words[1]), (words[2:] or ["test"])[0])
            held[got.grant] = mmap.mmap(got.descriptor, got.bytes)
            held[got.grant][:8] = got.grant.to_bytes(8, "little")
            held[got.grant][-8:] = got.grant.to_bytes(8, "little")
            os.close(got.descriptor)
            print("granted", got.grant, got.bytes, flush=True)
        elif op == "return":
            held.pop(int(words[0])).close()
            client.give_back(int(words[0]))
            print("returned", flush=True)
        elif op == "check":
            good = all(m[:8] == n.to_bytes(8, "little") == m[-8:] for n, m in held.items())
            print("contents", good, sum(len(m) for m in held.values()), flush=True)
        elif op == "stats":
            print("stats", sum(client.stats()["used"].values()), flush=True)
    except BrokerError as error:
        print("refused", error.reason, flush=True)
"""


class Holding:
    """A process that asks the broker for memory and writes to it."""

    def __init__(self, path: str, token: str = "secret") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, path, token],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def send(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()

    def answer(self) -> list[str]:
        assert self.process.stdout is not None
        return self.process.stdout.readline().split()

    def ask(self, *words: object) -> list[str]:
        self.send(*words)
        return self.answer()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
