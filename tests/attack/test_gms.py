"""An engine that lies to the server of resident weights, sends garbage, floods it, or stalls."""

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from services.node_agent.memory.gms import engines
from services.node_agent.memory.gms.resident_weights import ResidentWeights
from tests.gms_world import DEVICES, Engine, admission, entry
from tests.memory_world import MIB

HOSTILE = """
import os, random, socket, struct, sys
import msgspec

path, seed = sys.argv[1], int(sys.argv[2])
chance = random.Random(seed)
for _ in range(20):
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(path)
    stream.settimeout(5)

    def send(body, length=None):
        rights = [0] if chance.random() < 0.2 else []
        length = len(body) if length is None else length
        socket.send_fds(stream, [struct.pack("!I", length) + body], rights)

    kinds = ["allocate_request", "export_allocation_request", "free_allocation_request",
             "metadata_put_request", "commit_request", "handshake_request", "error_response"]
    values = [-1, 1 << 62, "x", b"", None, [], {}, 1.5, True, "../..", "x" * 5000]
    try:
        if chance.random() < 0.7:
            send(msgspec.msgpack.encode({"type": "handshake_request", "timeout_ms": 0,
                 "lock_type": chance.choice(["rw", "ro", "rw_or_ro", "rw_persistent", ""])}))
            stream.recv(1000)
        for _ in range(chance.randrange(5)):
            fields = {name: chance.choice(values) for name in
                      chance.sample(["size", "tag", "allocation_id", "key", "offset_bytes",
                                     "value", "lock_type", "timeout_ms", "content"], 4)}
            body = msgspec.msgpack.encode({"type": chance.choice(kinds), **fields})
            if chance.random() < 0.3:
                body = chance.randbytes(chance.randrange(200))
            send(body, chance.choice([None, None, None, 0, 1, 1 << 31]))
        if chance.random() < 0.3:
            stream.shutdown(socket.SHUT_WR)
            stream.recv(1000)
    except OSError:
        pass
    stream.close()
"""


@pytest_asyncio.fixture
async def weights(tmp_path: Path) -> AsyncIterator[ResidentWeights]:
    made = ResidentWeights(tmp_path / "resident", "host", DEVICES)
    await made.open(())
    for name in ("m", "n"):
        await made.serve(entry(tmp_path, name))
        await made.admit(name, admission(tmp_path, f"{name}.1"))
    yield made
    with contextlib.suppress(ProcessLookupError):
        os.kill(made.pid, signal.SIGKILL)
    await made.close()


def connected(path: str) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(path)
    stream.settimeout(10)
    return stream


def framed(kind: str, **fields: object) -> bytes:
    body = msgspec.msgpack.encode({"type": kind, **fields})
    return struct.pack("!I", len(body)) + body


async def unharmed(weights: ResidentWeights, folder: Path, before: int) -> None:
    """The other entry works as before, and the server is the same process."""
    engine = Engine()
    path = entry(folder, "n").socket
    assert (await asyncio.to_thread(engine.ask, "connect", path, "rw"))[1] == "rw"
    assert (await asyncio.to_thread(engine.ask, "load", "s", MIB))[0] == "loaded"
    engine.kill()
    assert weights.pid == before


@pytest.mark.parametrize("seed", range(10))
async def test_garbage_ends_the_connection_and_leaves_nothing(
    weights: ResidentWeights, tmp_path: Path, seed: int
) -> None:
    before = weights.pid
    command = [sys.executable, "-c", HOSTILE, entry(tmp_path).socket, str(seed)]
    await asyncio.to_thread(subprocess.run, command, check=True)
    await unharmed(weights, tmp_path, before)
    for _ in range(500):
        if weights.entries()[0].state in ("EMPTY", "COMMITTED"):
            break
        await asyncio.sleep(0.01)
    assert weights.entries()[0].bytes == 0
    assert len(await asyncio.to_thread(os.listdir, f"/proc/{before}/fd")) < 20


async def test_a_process_of_another_job_gets_no_state_and_no_lock(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    """This process is the supervisor, so it does not belong to the attempt itself."""
    for kind, fields in (
        ("handshake_request", {"lock_type": "ro"}),
        ("get_runtime_state_request", {}),
        ("get_event_history_request", {}),
        ("allocate_request", {"size": 1}),
    ):
        stream = connected(entry(tmp_path).socket)
        stream.sendall(framed(kind, **fields))
        answer = msgspec.msgpack.decode(stream.recv(4096)[4:])
        assert answer["type"] == "error_response" and "belongs to no attempt" in answer["error"]
        assert stream.recv(1) == b""
        stream.close()


async def test_a_flood_of_connections_is_bounded(weights: ResidentWeights, tmp_path: Path) -> None:
    path = entry(tmp_path).socket
    streams = [connected(path) for _ in range(engines.CONNECTIONS_OF_USER_MAX + 20)]
    closed = 0
    for stream in streams:
        with contextlib.suppress(BlockingIOError):
            stream.setblocking(False)
            closed += stream.recv(1) == b""
    for _ in range(500):
        if closed >= 20:
            break
        await asyncio.sleep(0.01)
        for stream in streams[engines.CONNECTIONS_OF_USER_MAX + closed :]:
            with contextlib.suppress(BlockingIOError):
                closed += stream.recv(1) == b""
    assert closed == 20
    for stream in streams:
        stream.close()
    await unharmed(weights, tmp_path, weights.pid)


STALLING = """
import socket, struct, sys, time
import msgspec
stream = socket.socket(socket.AF_UNIX)
stream.connect(sys.argv[1])
stream.settimeout(5)

def ask(kind, **fields):
    body = msgspec.msgpack.encode({"type": kind, **fields})
    stream.sendall(struct.pack("!I", len(body)) + body)

def answer():
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack("!I", data[:4])[0]:
        data += stream.recv(65536)

ask("handshake_request", lock_type="rw"); answer()
for _ in range(30):
    ask("allocate_request", size=1, tag="x" * 1000); answer()
sent = 0
try:
    while True:
        ask("list_allocations_request"); sent += 1
except TimeoutError:
    print("stalled", flush=True)
time.sleep(60)
"""


async def test_an_engine_that_reads_no_answers_stalls_only_itself(
    weights: ResidentWeights, tmp_path: Path
) -> None:
    big = entry(tmp_path, "big", device=1, limit=64 * MIB)
    await weights.serve(big)
    await weights.admit("big", admission(tmp_path, "big.1"))
    before = weights.pid
    process = await asyncio.to_thread(
        subprocess.Popen,
        [sys.executable, "-c", STALLING, big.socket],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert await asyncio.to_thread(process.stdout.readline) == "stalled\n"
    await unharmed(weights, tmp_path, before)
    status = (await asyncio.to_thread(Path(f"/proc/{before}/status").read_text)).splitlines()
    (resident,) = [int(line.split()[1]) for line in status if line.startswith("RssAnon")]
    assert resident < 64 << 10  # KiB
    process.kill()
    await asyncio.to_thread(process.communicate)
    for _ in range(500):
        if weights.owned()["big"] == 0:
            break
        await asyncio.sleep(0.01)
    assert weights.owned()["big"] == 0
