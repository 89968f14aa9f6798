"""Messages about traces of jobs, between a gateway and the agents of the job's nodes. Pure.

A gateway keeps nothing of a trace: each message is complete in itself.
"""

from typing import Final

import msgspec

from libs.common.model import JobId
from libs.common.traces.clock_offset import ClockPoint

# Bytes of a trace in one answer.
PART_BYTES: Final = 256 << 10
# Processes of one node in a trace.
PLACES_PER_NODE: Final = 64

# States of a trace on a node, and of one process's part of it.
WAITING: Final = "waiting"
TRACING: Final = "tracing"
WRITING: Final = "writing"
CAPTURED: Final = "captured"
ALIGNING: Final = "aligning"
READY: Final = "ready"
FAILED: Final = "failed"
OVER: Final = (READY, FAILED)

# Faults.
UNKNOWN: Final = "unknown"
BUSY: Final = "busy"
NOTHING: Final = "nothing"
INVALID: Final = "invalid"


class TraceClock(msgspec.Struct, frozen=True, tag="clock"):
    """gateway -> agent: read the clock; the answer is a ClockRead."""


class ClockRead(msgspec.Struct, frozen=True, array_like=True):
    """agent -> gateway: when the message came and when it was answered, on the node's clock."""

    received_ns: int
    answered_ns: int


class TraceBegin(msgspec.Struct, frozen=True, tag="begin", kw_only=True):
    """gateway -> agent: trace the processes of an attempt.

    `start_ns` is on the node's own clock. `ranks`: empty for all. `point` is the node's clock
    before the trace, and `origin_ns` the zero of the result on the reference clock. `place` numbers
    the node's first file among those of all nodes.
    """

    trace: str
    job_id: JobId
    attempt: int
    start_ns: int
    duration_ms: int
    point: ClockPoint
    origin_ns: int
    place: int
    ranks: tuple[int, ...] = ()
    stacks: bool = False
    shapes: bool = False
    memory: bool = False


class TracePoll(msgspec.Struct, frozen=True, tag="look"):
    """gateway -> agent: return the state of a trace."""

    trace: str
    job_id: JobId
    attempt: int


class TraceFinish(msgspec.Struct, frozen=True, tag="finish"):
    """gateway -> agent: align what was captured. `point` is the node's clock after the trace."""

    trace: str
    job_id: JobId
    attempt: int
    point: ClockPoint


class TraceRead(msgspec.Struct, frozen=True, tag="read"):
    """gateway -> agent: return a part of an aligned file, which is compressed with gzip."""

    trace: str
    job_id: JobId
    attempt: int
    file: int
    offset: int


class TraceList(msgspec.Struct, frozen=True, tag="list"):
    """gateway -> agent: return the traces of a job that this node keeps."""

    job_id: JobId


TraceAsk = TraceClock | TraceBegin | TracePoll | TraceFinish | TraceRead | TraceList


class TracedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One process's part of a trace.

    `tracer` says who traces: torch (PyTorch's profiler) or cupti (Muster's library). `cores_before`
    and `cores_during` are thousandths of a core that the process used before and while it was
    traced; `tracer_ms` is the processor time of the tracer's own threads, `write_ms` how long after
    the end its file was complete. `size_bytes` are compressed, `raw_bytes` are not.
    """

    rank: int
    pid: int
    state: str = WAITING
    tracer: str = ""
    command: str = ""
    events: int = 0
    dropped: int = 0
    raw_bytes: int = 0
    size_bytes: int = 0
    cores_before: int = 0
    cores_during: int = 0
    tracer_ms: int = 0
    write_ms: int = 0
    error: str = ""


class TraceState(msgspec.Struct, frozen=True, kw_only=True):
    """agent -> gateway: a trace on this node; `fault` and `text` say why there is none.

    `error_ns` is the largest error of the node's clock against the reference clock.
    """

    trace: str = ""
    job_id: JobId = JobId("")
    attempt: int = 0
    state: str = FAILED
    start_ns: int = 0
    origin_ns: int = 0
    duration_ms: int = 0
    shift_ns: int = 0
    error_ns: int = 0
    processes: tuple[TracedProcess, ...] = ()
    fault: str = ""
    text: str = ""


class TraceListed(msgspec.Struct, frozen=True):
    """agent -> gateway: the traces of a job on this node, the newest first."""

    traces: tuple[TraceState, ...] = ()


class TracePart(msgspec.Struct, frozen=True):
    """agent -> gateway: a part of a file of a trace, or the reason why there is none."""

    size_bytes: int = 0
    data: bytes = b""
    fault: str = ""
    text: str = ""
