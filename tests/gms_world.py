"""A server of resident weights as a real process, and stand-ins for engines that speak GMS.

The stand-in builds its messages itself, as the published description has them, so that it does not
share the server's mistakes.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from services.node_agent.memory.gms.state import Admission, Entry
from tests.memory_world import MIB, devices
from tests.memory_world import attempt as broker_attempt

DEVICES = devices({0: 64 * MIB, 1: 64 * MIB})
CONTENT = tuple(sorted(hashlib.sha256(name).hexdigest() for name in (b"shard 1", b"shard 2")))


def entry(
    folder: Path,
    name: str = "m",
    tenant: str = "tenant",
    limit: int = 32 * MIB,
    device: int = 0,
    content: tuple[str, ...] = CONTENT,
) -> Entry:
    """Return an entry whose socket is a short path below this folder."""
    return Entry(name, tenant, "model", "weights", device, limit, f"{folder}/{name}.sock", content)


def admission(folder: Path, key: str = "job.1", tenant: str = "tenant", pid: int = 0) -> Admission:
    """Return an attempt whose supervisor is this process, or the one with this pid."""
    found = broker_attempt(folder, key, pid=pid or os.getpid())
    return Admission(key, tenant, found.job_dir, CONTENT)


ENGINE = '''
import array, hashlib, mmap, os, random, socket, struct, sys
import msgspec

class Gms:
    def __init__(self, path):
        self.stream = socket.socket(socket.AF_UNIX)
        self.stream.connect(path)
        self.data = b""

    def ask(self, kind, **fields):
        body = msgspec.msgpack.encode({"type": kind, **fields})
        self.stream.sendall(struct.pack("!I", len(body)) + body)
        rights = []
        while len(self.data) < 4 or len(self.data) < 4 + struct.unpack("!I", self.data[:4])[0]:
            data, ancillary, flags, _ = self.stream.recvmsg(65536, socket.CMSG_SPACE(4))
            for _, _, found in ancillary:
                rights += array.array("i", found)
            if not data:
                raise ConnectionError("the server closed the connection")
            self.data += data
        end = 4 + struct.unpack("!I", self.data[:4])[0]
        answer, self.data = msgspec.msgpack.decode(self.data[4:end]), self.data[end:]
        if answer["type"] == "error_response":
            raise RuntimeError(answer["error"])
        return answer, rights

def mapped(rights, size, writes):
    made = mmap.mmap(rights[0], size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writes else 0))
    os.close(rights[0])
    return made

def filled(seed, size):
    return random.Random(seed).randbytes(size)

gms, maps, notes = None, {}, {}

def unmap():
    """Give up all mappings, as an engine does before it lets go of its lock."""
    for each in maps.values():
        each.close()
    maps.clear()
    notes.clear()

def connect(path, wanted, timeout_ms="none"):
    global gms
    unmap()
    if gms is not None:
        gms.stream.close()
    gms = Gms(path)
    answer, _ = gms.ask("handshake_request", lock_type=wanted,
                        timeout_ms=None if timeout_ms == "none" else int(timeout_ms))
    return "connected", answer["granted_lock_type"], answer["committed"]

def load(seed, *sizes):
    """Allocate, write and describe one allocation for each size."""
    unmap()
    for number, size in enumerate(map(int, sizes)):
        made, _ = gms.ask("allocate_request", size=size, tag="weights")
        name, slot = made["allocation_id"], made["layout_slot"]
        _, rights = gms.ask("export_allocation_request", allocation_id=name)
        maps[slot] = mapped(rights, made["aligned_size"], True)
        maps[slot][:size] = filled(f"{seed}.{number}", size)
        notes[slot] = f"{seed}.{number}:{size}"
        gms.ask("metadata_put_request", key=f"layer.{seed}.{number}", offset_bytes=0,
                allocation_id=name, value=notes[slot].encode())
    return "loaded", sum(map(len, maps.values()))

def commit():
    """Unmap and publish."""
    unmap()
    gms.ask("commit_request")
    return "committed",

def read():
    """Map all allocations for reading."""
    unmap()
    slots = {}
    for each in gms.ask("list_allocations_request")[0]["allocations"]:
        _, rights = gms.ask("export_allocation_request", allocation_id=each["allocation_id"])
        slots[each["allocation_id"]] = each["layout_slot"]
        maps[each["layout_slot"]] = mapped(rights, each["aligned_size"], False)
    for key in gms.ask("metadata_list_request", prefix="layer.")[0]["keys"]:
        found = gms.ask("metadata_get_request", key=key)[0]
        notes[slots[found["allocation_id"]]] = found["value"].decode()
    return "read", len(maps)

def verify():
    """Compare what is mapped with what its description says; print the writer's seed."""
    same = maps.keys() == notes.keys()
    for slot, note in notes.items():
        name, size = note.split(":")
        same = same and maps[slot][:int(size)] == filled(name, int(size))
    seeds = {note.split(".")[0] for note in notes.values()} or {"none"}
    return "same", same, "+".join(sorted(seeds)), sum(map(len, maps.values()))

def write_as_reader():
    """Try every way to write to memory that was exported for reading."""
    first = gms.ask("list_allocations_request")[0]["allocations"][0]
    _, rights = gms.ask("export_allocation_request", allocation_id=first["allocation_id"])
    for attempt in (lambda: mmap.mmap(rights[0], first["aligned_size"]),
                    lambda: os.write(rights[0], b"x"), lambda: os.ftruncate(rights[0], 1)):
        try:
            attempt()
            return "written",
        except OSError:
            pass
    return "refused",

def ask(kind, *fields):
    names = dict(each.split("=") for each in fields)
    given = {name: int(value) if value.lstrip("-").isdigit() else value
             for name, value in names.items()}
    answer, rights = gms.ask(kind, **given)
    return "answer", *[f"{name}={value}" for name, value in answer.items() if name != "type"]

def named(path, *content):
    """Shake hands as a client that names the weights that it expects."""
    answer, _ = Gms(path).ask("handshake_request", lock_type="ro", content=content)
    return "connected", answer["granted_lock_type"]

def probe(path, kind):
    """Ask for a state without a lock."""
    answer, _ = Gms(path).ask(kind)
    events = [each["kind"] for each in answer.get("events", [])]
    return "answer", *events, *[f"{name}={value}" for name, value in answer.items()
                                if name not in ("type", "events")]

def close():
    global gms
    unmap()
    if gms is not None:
        gms.stream.close()
    gms = None
    return "closed",

for line in sys.stdin:
    name, *words = line.split()
    try:
        print(*globals()[name](*words), flush=True)
    except (RuntimeError, OSError, AttributeError) as error:
        print("failed", type(error).__name__, str(error).replace("\\n", " "), flush=True)
'''


class Engine:
    """A stand-in for an engine: it maps memory, writes and compares it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENGINE],
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


AGENT = """
import asyncio, json, sys
from pathlib import Path
import msgspec
from services.node_agent.memory.device_memory import Device
from services.node_agent.memory.gms.resident_weights import ResidentWeights
from services.node_agent.memory.gms.state import Admission, Entry
from services.node_agent.memory.grants import Refusal

async def main(folder, devices):
    weights = ResidentWeights(Path(folder), "host", msgspec.convert(devices, list[Device]))
    kinds = {"serve": (Entry,), "admit": (str, Admission), "dismiss": (str,), "drop": (str, bool)}
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, *rest = json.loads(line)
        found = ""
        try:
            if name == "open":
                await weights.open(rest)
            elif name in kinds:
                given = [msgspec.convert(*each) for each in zip(rest, kinds[name])]
                await getattr(weights, name)(*given)
        except Refusal as refusal:
            found = refusal.reason
        state = {"refused": found, "pid": weights.pid, "owned": weights.owned(),
                 "entries": msgspec.to_builtins(weights.entries())}
        print(json.dumps(state), flush=True)

asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
"""


class Agent:
    """The agent's side in a process of its own, which can be killed."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT, str(folder), json.dumps(msgspec.to_builtins(DEVICES))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *command: object) -> dict[str, Any]:
        """Let the agent do something; return what it knows afterwards."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(msgspec.to_builtins(command)) + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def kill(self) -> None:
        """Kill it. The server that it started has its output, so that never ends."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
