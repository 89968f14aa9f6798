"""Reads the records of the job's libraries: NCCL's RAS subsystem, PyTorch's flight recorder.

Both are the job's: their answers may hold anything, so they are bounded and hold no objects. A dump
of the flight recorder is a pickle; a process of its own reads it (`dump_reading.py`). Tests:
tests/integration/test_diagnosis_recorders.py.
"""

import json
import os
import re
import socket
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from libs.common.diagnosis.collectives import from_ras
from libs.common.diagnosis.evidence import RasCommunicator
from libs.common.facts import UNDECODABLE
from services.node_agent.diagnosis.bounded_output import output_of
from services.node_agent.diagnosis.dump_reading import ANSWER_BYTES, DUMP_BYTES, Recorded
from services.node_agent.directories.acting_as import acting_as

LOOPBACK: Final = "127.0.0.1"
ADDRESS: Final = re.compile(r"127\.0\.0\.1:(\d{1,5})")
RAS_PROTOCOL: Final = 2
RAS_S: Final = 2.0
RAS_BYTES: Final = 4 << 20
RAS_PART: Final = 64 << 10

# Files that PyTorch names after a rank, in the folder that the agent gives the job.
DUMP_PREFIX: Final = "nccl_trace_rank_"
PIPE_PREFIX: Final = "nccl_pipe_rank_"
PIPE_SUFFIX: Final = ".pipe"
# All dumps of one diagnosis.
DUMPS_S: Final = 3.0
READER: Final = "services.node_agent.diagnosis.dump_reading"
READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
WRITE_FLAGS: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


_recorded = msgspec.json.Decoder(Recorded)


def communicators(address: str, limit_s: float = RAS_S) -> tuple[RasCommunicator, ...]:
    """Return what NCCL's RAS subsystem says at this address.

    Raises OSError without an answer in time, ValueError for an answer that is no status, or an
    address that is not on this machine.
    """
    match = ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[1]) < 65_536:
        raise ValueError(f"{address[:64]!r} is no port of {LOOPBACK}")
    deadline = time.monotonic() + limit_s
    with socket.create_connection((LOOPBACK, int(match[1])), limit_s) as connection:
        asked = f"CLIENT PROTOCOL {RAS_PROTOCOL}\nTIMEOUT 1\nSET FORMAT json\nVERBOSE STATUS\n"
        connection.sendall(asked.encode())
        answer = _until_end(connection, deadline)
    begin = answer.find(b"{")
    if begin < 0:
        raise ValueError("it answers without JSON: NCCL 2.28 or newer does")
    try:
        return from_ras(json.loads(answer[begin:]))
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error


def _until_end(connection: socket.socket, deadline: float) -> bytes:
    """Return all bytes until the other side closes. Raises TimeoutError."""
    found = bytearray()
    while len(found) < RAS_BYTES:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no whole answer in time")
        connection.settimeout(left_s)
        part = connection.recv(RAS_PART)
        if not part:
            break
        found += part
    return bytes(found)


def ask_for_dumps(folder: str, ranks: Sequence[int], ids: Sequence[int]) -> None:
    """Tell the flight recorder of these ranks to write a dump; those that do not read their pipe
    are left out.
    """
    try:
        with acting_as(ids):
            for rank in ranks:
                _tell(f"{folder}/{PIPE_PREFIX}{rank}{PIPE_SUFFIX}")
    except OSError:
        return


def _tell(path: str) -> None:
    try:
        descriptor = os.open(path, WRITE_FLAGS)
    except OSError:
        return
    try:
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            os.write(descriptor, b"1\n")
    except OSError:
        return
    finally:
        os.close(descriptor)


def recorded(
    folder: str,
    ranks: Sequence[int],
    ids: Sequence[int],
    since_s: float = 0.0,
    limit_s: float = DUMPS_S,
) -> dict[int, Recorded]:
    """Return the content of the last dump of each rank.

    Ranks without a dump are left out, and those whose dump is older than `since_s` (wall clock).
    """
    opened: dict[int, int] = {}
    try:
        with acting_as(ids):
            for rank in ranks:
                descriptor = _opened(f"{folder}/{DUMP_PREFIX}{rank}", since_s)
                if descriptor >= 0:
                    opened[rank] = descriptor
        return _read(opened, limit_s) if opened else {}
    except OSError as error:
        return dict.fromkeys(opened, Recorded(error=f"the dump cannot be read: {error}"))
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def _opened(path: str, since_s: float) -> int:
    """Open a dump; return -1 if the path has none that is new enough."""
    try:
        descriptor = os.open(path, READ_FLAGS)
    except OSError:
        return -1
    found = os.fstat(descriptor)
    is_new = found.st_mtime >= since_s
    if is_new and stat.S_ISREG(found.st_mode) and 0 < found.st_size <= DUMP_BYTES:
        return descriptor
    os.close(descriptor)
    return -1


def _read(opened: Mapping[int, int], limit_s: float) -> dict[int, Recorded]:
    """Return what the open dumps have. Raises OSError."""
    command = [sys.executable, "-m", READER, *map(str, opened.values())]
    found = output_of(
        command, limit_s, (ANSWER_BYTES + 1) * len(opened), descriptors=list(opened.values())
    )
    lines = found.data.split(b"\n")[:-1]
    read = dict(zip(opened, map(_answered, lines), strict=False))
    missing = Recorded(error=f"the dump cannot be read: its reader failed: {found.fault}")
    return {rank: read.get(rank, missing) for rank in opened}


def _answered(line: bytes) -> Recorded:
    try:
        return _recorded.decode(line)
    except UNDECODABLE as error:
        return Recorded(error=f"the dump cannot be read: {error}")
