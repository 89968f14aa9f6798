"""What the job's own libraries recorded: NCCL's RAS subsystem, and PyTorch's flight recorder.

Both are the job's: their answers may hold anything, so they are bounded and hold no objects. A dump
of the flight recorder is a pickle; it is read without any class or function, so it can run nothing.
Tests: tests/integration/test_diagnosis_recorders.py.
"""

import io
import json
import os
import pickle  # nosec B403: read by NoObjects alone
import re
import socket
import stat
import time
from collections.abc import Sequence
from typing import Final, NoReturn

from libs.common.diagnosis.collectives import from_ras, from_recorder
from libs.common.diagnosis.evidence import Collective, RasCommunicator
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
DUMP_BYTES: Final = 8 << 20
READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
WRITE_FLAGS: Final = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NoObjects(pickle.Unpickler):
    """Reads pickles of plain data only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("a reference is not plain data")


def communicators(address: str) -> tuple[RasCommunicator, ...]:
    """Return what NCCL's RAS subsystem says at this address.

    Raises OSError without an answer in time, ValueError for an answer that is no status, or an
    address that is not on this machine.
    """
    match = ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[1]) < 65_536:
        raise ValueError(f"{address[:64]!r} is no port of {LOOPBACK}")
    deadline = time.monotonic() + RAS_S
    with socket.create_connection((LOOPBACK, int(match[1])), RAS_S) as connection:
        asked = f"CLIENT PROTOCOL {RAS_PROTOCOL}\nTIMEOUT 1\nSET FORMAT json\nVERBOSE STATUS\n"
        connection.sendall(asked.encode())
        answer = _until_end(connection, deadline)
    begin = answer.find(b"{")
    if begin < 0:
        raise ValueError("it answers without JSON: NCCL 2.28 or newer does")
    return from_ras(json.loads(answer[begin:]))


def _until_end(connection: socket.socket, deadline: float) -> bytes:
    """Return all bytes until the other side closes. Raises TimeoutError."""
    found = b""
    while len(found) < RAS_BYTES:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        part = connection.recv(RAS_PART)
        if not part:
            break
        found += part
    return found


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


def recorded(folder: str, rank: int, ids: Sequence[int]) -> tuple[Collective, ...]:
    """Return the collectives in the last dump of a rank; none without a dump.

    Raises ValueError for a file that is no dump.
    """
    try:
        with acting_as(ids):
            data = _contents(f"{folder}/{DUMP_PREFIX}{rank}")
    except OSError:
        return ()
    return from_recorder(_plain(data)) if data else ()


def _contents(path: str) -> bytes:
    descriptor = os.open(path, READ_FLAGS)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > DUMP_BYTES:
            return b""
        return os.read(descriptor, DUMP_BYTES)
    finally:
        os.close(descriptor)


def _plain(data: bytes) -> object:
    """Return the data of a dump: JSON or a pickle without objects. Raises ValueError."""
    try:
        if data[:1] == b"{":
            found: object = json.loads(data)
        else:
            found = NoObjects(io.BytesIO(data)).load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"the dump cannot be read: {error!r:.200}") from error
    return found
