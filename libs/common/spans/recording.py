"""The queue of spans of one process, and the trace that its present task works for.

A process without a collector has no recorder: `active` is None, and callers do nothing. Otherwise
a span is put into a queue of at most QUEUE_MAX; if it is full, the span is dropped and counted, so
a slow or dead collector never slows the process down. Tests: tests/unit/test_recording.py.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Final, NamedTuple

from libs.common.spans.trace_context import TraceContext

# Spans that wait for their export.
QUEUE_MAX: Final = 8_192
# Questions of one request over the bus that are spans.
ASKS_MAX: Final = 32
# Characters of a text in a span.
TEXT_MAX: Final = 512

# Kinds of spans, by OpenTelemetry's names.
INTERNAL: Final = "INTERNAL"
SERVER: Final = "SERVER"
CLIENT: Final = "CLIENT"
PRODUCER: Final = "PRODUCER"
CONSUMER: Final = "CONSUMER"

Value = str | int | float | bool
NOTHING: Final[Mapping[str, Value]] = {}


class Span(NamedTuple):
    """An operation that has ended. Times are wall-clock nanoseconds; `error` is why it failed."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value] = NOTHING
    kind: str = INTERNAL
    error: str = ""


class Work:
    """The purpose of a task: a trace, and the span below which its spans hang.

    `asks_left` bounds its questions over the bus that carry the trace on: a request that follows
    the output of a job for hours asks without end.
    """

    __slots__ = ("asks_left", "context")

    def __init__(self, context: TraceContext) -> None:
        self.context = context
        self.asks_left = ASKS_MAX


class Recorder:
    """The spans of one process that wait for their export.

    `dropped` counts those that found the queue full, `sent` and `failed` those that the collector
    took or did not take. The percentages say which new traces are recorded.
    """

    def __init__(self, job_percent: int = 100, request_percent: int = 100) -> None:
        self.job_percent = job_percent
        self.request_percent = request_percent
        self.queue: deque[Span] = deque()
        self.dropped = self.sent = self.failed = 0

    def record(self, span: Span) -> None:
        """Queue a span for its export."""
        if len(self.queue) >= QUEUE_MAX:
            self.dropped += 1
        else:
            self.queue.append(span)

    def record_all(self, spans: Iterable[Span]) -> None:
        for span in spans:
            self.record(span)

    def take(self, most: int) -> list[Span]:
        """Return and remove the oldest spans. Only the exporter calls it."""
        taken = min(most, len(self.queue))
        return [self.queue.popleft() for _ in range(taken)]


# The recorder of this process; None if spans are off. Read it as `recording.active`.
active: Recorder | None = None
# What the present task works for; None: no trace.
current: ContextVar[Work | None] = ContextVar("current", default=None)
