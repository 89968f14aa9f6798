"""Events of one process's trace, moved to the reference clock and to ids of their own. Pure.

The input is Chrome's trace event format as PyTorch's profiler and the CUPTI library write it:
times in microseconds since `baseTimeNanoseconds`. The output has times since the trace's origin.
Process ids become numbers that no other rank has, so that Perfetto keeps the ranks apart.
Tests: tests/unit/test_chrome_events.py.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import msgspec

from libs.common.traces.clock_offset import ClockPoint, shift_at

# Distinct processes in one file: the process itself, its devices, and the profiler's own rows.
PIDS_MAX: Final = 1_000
IDS_PER_FILE: Final = 1 << 32
NAMES: Final = "process_name"
ORDER: Final = "process_sort_index"
# The zero of the times is this long before the start: what goes on at the start began before it,
# and Perfetto drops events with times below zero.
LEAD_IN_NS: Final = 60_000_000_000
# Kinds of events that have no time: metadata.
METADATA: Final = "M"
US: Final = 1_000
TIME_MAX: Final = 1 << 62
# The largest exponent of a number that a reader with 64 bits holds.
EXPONENT_MAX: Final = 300

Event = dict[str, Any]

_encoder = msgspec.json.Encoder(decimal_format="number")


class TraceFile(msgspec.Struct, frozen=True):
    """The parts of a trace file that are used.

    `distributedInfo` names the rank. `error` says why the tracer has no events, and `lost` counts
    those that it had no room for.
    """

    traceEvents: list[msgspec.Raw]
    baseTimeNanoseconds: int = 0
    distributedInfo: dict[str, Any] = {}
    error: str = ""
    lost: int = 0


class Alignment(msgspec.Struct, frozen=True):
    """The shift of one process's events.

    `origin_ns` is the zero of the result on the reference clock. `before` and `after` are the clock
    of this node, measured before and after the trace. `place` numbers the file among all files of
    the trace; `title` names its processes.
    """

    origin_ns: int
    before: ClockPoint
    after: ClockPoint
    place: int
    title: str


class Aligner:
    """Aligns the events of one file. `dropped` counts events that cannot be read."""

    def __init__(self, alignment: Alignment, base_ns: int) -> None:
        self.alignment = alignment
        self.base_ns = base_ns
        self.pids: dict[str, int] = {}
        self.tids: dict[str, int] = {}
        self.named: set[int] = set()
        self.dropped = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None

    def aligned(self, event: object) -> Event | None:
        """Return the event for the merged trace; None for one that cannot be read."""
        try:
            return self._moved(event)
        except (TypeError, ValueError, ArithmeticError):
            self.dropped += 1
            return None

    def names(self) -> list[Event]:
        """Return the metadata of processes that the file itself did not name."""
        return [
            _metadata(pid, NAMES, "name", f"{self.alignment.title}: {key}")
            for key, pid in self.pids.items()
            if pid not in self.named
        ]

    def _moved(self, event: object) -> Event:
        """Return the event for the merged trace. Raises TypeError, ValueError, ArithmeticError."""
        if not isinstance(event, dict):
            raise TypeError("an event is an object")
        moved = dict(event)
        pid = self._pid(event.get("pid", 0))
        moved["pid"] = pid
        if "tid" in event:
            moved["tid"] = self._tid(event["tid"])
        if "id" in event:
            moved["id"] = self._id(event["id"])
        if event.get("ph") == METADATA:
            moved.pop("ts", None)
            return self._named(moved, pid)
        start_ns = self._time(moved)
        length_ns = exact_ns(event["dur"]) if "dur" in event else 0
        self.first_ns = start_ns if self.first_ns is None else min(self.first_ns, start_ns)
        end_ns = start_ns + length_ns
        self.last_ns = end_ns if self.last_ns is None else max(self.last_ns, end_ns)
        return moved

    def _time(self, moved: Event) -> int:
        """Set the event's time; return it on the reference clock."""
        local_ns = self.base_ns + exact_ns(moved.get("ts"))
        alignment = self.alignment
        at_ns = local_ns + shift_at(local_ns, alignment.before, alignment.after)
        if at_ns < alignment.origin_ns:
            raise ValueError("the event began long before the trace")
        moved["ts"] = microseconds(at_ns - alignment.origin_ns)
        return at_ns

    def _named(self, moved: Event, pid: int) -> Event:
        """Put the rank before a process's name, and order processes by rank."""
        given = moved.get("args")
        arguments = given if isinstance(given, dict) else {}
        if moved.get("name") == NAMES:
            self.named.add(pid)
            moved["args"] = {"name": f"{self.alignment.title}: {arguments.get('name', '')}"}
        elif moved.get("name") == ORDER:
            moved["args"] = {"sort_index": pid}
        return moved

    def _pid(self, given: object) -> int:
        key = str(given)
        if key not in self.pids:
            if len(self.pids) >= PIDS_MAX:
                raise ValueError("too many processes in one trace")
            self.pids[key] = self.alignment.place * PIDS_MAX + len(self.pids) + 1
        return self.pids[key]

    def _tid(self, given: object) -> object:
        """Return a thread id. Names become numbers that no thread of Linux has."""
        if isinstance(given, int):
            return given
        key = str(given)
        return self.tids.setdefault(key, (1 << 30) + len(self.tids))

    def _id(self, given: object) -> object:
        """Return the id of a flow or of an asynchronous event, apart from those of other files."""
        if isinstance(given, int):
            return self.alignment.place * IDS_PER_FILE + given % IDS_PER_FILE
        return f"{self.alignment.place}/{given}"


def number(text: str) -> Decimal:
    """Return a number with a fraction or an exponent, without loss.

    Raises ValueError for one that readers of the result could not hold.
    """
    found = Decimal(text)
    if found.adjusted() > EXPONENT_MAX:
        raise ValueError(f"{text[:32]} is too large")
    return found


def exact_ns(microseconds_given: object) -> int:
    """Return a time of the format in nanoseconds. Raises TypeError or ValueError for no time."""
    if isinstance(microseconds_given, bool) or not isinstance(microseconds_given, int | Decimal):
        raise TypeError(f"not a time: {microseconds_given!r}")
    time_ns = int(microseconds_given * US)
    if abs(time_ns) > TIME_MAX:
        raise ValueError(f"not a time: {microseconds_given!r}")
    return time_ns


def microseconds(time_ns: int) -> Decimal:
    """Return nanoseconds as the format's microseconds, without loss."""
    return Decimal(time_ns).scaleb(-3)


def encoded(event: Event) -> bytes:
    """Return an event as JSON."""
    return _encoder.encode(event)


def opening(about: Mapping[str, object]) -> bytes:
    """Return the beginning of the merged trace. Each event of it follows a comma.

    `about` is kept in the trace's `otherData`.
    """
    head = msgspec.json.encode({"displayTimeUnit": "ms", "otherData": about})
    name = {"ph": METADATA, "name": "muster_trace", "pid": 0, "tid": 0, "args": about}
    return head[:-1] + b',"traceEvents":[\n' + msgspec.json.encode(name)


CLOSING: Final = b"\n]}\n"


def _metadata(pid: int, name: str, argument: str, value: object) -> Event:
    return {"ph": METADATA, "name": name, "pid": pid, "tid": 0, "args": {argument: value}}
