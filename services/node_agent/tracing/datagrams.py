"""The datagrams between PyTorch's profiler (libkineto) and its daemon, as dynolog defines them.

Pure. A datagram is a header (the size of the rest as a size_t, then a type of 32 bytes) and a body
in the machine's byte order. A process first may register its GPU ("ctxt"), then asks every few
seconds whether it should trace ("req"); the answer is a configuration text, empty for no.
Tests: tests/unit/test_trace_datagrams.py.
"""

import struct
from collections.abc import Mapping
from typing import Final, NamedTuple

HEADER: Final = struct.Struct("=Q32s")
CONTEXT: Final = struct.Struct("=iiq")
REQUEST: Final = struct.Struct("=iiq")
PID: Final = struct.Struct("=i")
COUNT: Final = struct.Struct("=i")
REGISTER: Final = "ctxt"
# The types of questions: of PyTorch's profiler, and of Muster's CUPTI library.
TORCH: Final = "req"
CUPTI: Final = "cupti"
# The name of the daemon's socket in the folder of KINETO_IPC_SOCKET_DIR.
SOCKET: Final = "dynolog"
# A process sends its own id and those of its ancestors; no process has more.
PIDS_MAX: Final = 256
DATAGRAM_BYTES_MAX: Final = HEADER.size + REQUEST.size + PIDS_MAX * PID.size
# The bit of a request that asks for a trace of activities.
ACTIVITIES: Final = 2


class Registered(NamedTuple):
    """A process says that it uses a GPU. `pid` is its number in its own namespace."""

    gpu: int
    pid: int
    job_id: int


class Asked(NamedTuple):
    """A process asks whether it should trace. `pids` are its own and those of its ancestors, and
    `tracer` is the type of the question.
    """

    kind: int
    job_id: int
    pids: tuple[int, ...]
    tracer: str = TORCH


def decoded(datagram: bytes) -> Registered | Asked:
    """Return what a process sent. Raises ValueError for anything else."""
    if len(datagram) < HEADER.size:
        raise ValueError(f"a datagram of {len(datagram)} bytes has no header")
    size, name = HEADER.unpack_from(datagram)
    body = datagram[HEADER.size :]
    if size != len(body):
        raise ValueError(f"a datagram says {size} bytes and has {len(body)}")
    match name.split(b"\0", 1)[0].decode("ascii", "replace"):
        case "ctxt" if len(body) == CONTEXT.size:
            return Registered(*CONTEXT.unpack(body))
        case "req" | "cupti" as tracer if len(body) >= REQUEST.size:
            return _asked(body, tracer)
        case other:
            raise ValueError(f"a datagram of the unknown type {other[:32]!r}")


def _asked(body: bytes, tracer: str) -> Asked:
    kind, count, job_id = REQUEST.unpack_from(body)
    if not 1 <= count <= PIDS_MAX or len(body) != REQUEST.size + count * PID.size:
        raise ValueError(f"a request names {count} processes in {len(body)} bytes")
    pids = struct.unpack_from(f"={count}i", body, REQUEST.size)
    return Asked(kind, job_id, pids, tracer)


def registration(instances: int) -> bytes:
    """Return the answer to a registration: how many processes use that GPU."""
    return _framed(REGISTER, COUNT.pack(instances))


def configuration(text: str, tracer: str = TORCH) -> bytes:
    """Return the answer to a request; an empty text starts no trace."""
    return _framed(tracer, text.encode())


def request(pids: tuple[int, ...], tracer: str = TORCH, job_id: int = 0) -> bytes:
    """Return what a process sends to ask for an instruction."""
    body = REQUEST.pack(ACTIVITIES, len(pids), job_id) + b"".join(PID.pack(pid) for pid in pids)
    return _framed(tracer, body)


def text_of(datagram: bytes) -> str:
    """Return the text of a configuration that a process received."""
    return datagram[HEADER.size :].decode()


def written(options: Mapping[str, object]) -> str:
    """Return a configuration as libkineto reads it: one option in a line."""
    return "".join(f"{name}={value}\n" for name, value in options.items())


def _framed(name: str, body: bytes) -> bytes:
    return HEADER.pack(len(body), name.encode()) + body
