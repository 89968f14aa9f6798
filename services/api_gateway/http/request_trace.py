"""The span of one HTTP request, and the trace that it begins or continues.

A request with a sampled `traceparent` continues its client's trace. Otherwise the sampling decides;
the request's id and the trace's are then the same number. Only requests with an accepted key are
traced, and one tenant begins at most TENANT_TRACES_MAX in a second, so that nobody's spans crowd
out those of others. Tests: tests/integration/test_request_spans.py.
"""

import asyncio
import time
from os import urandom
from typing import Final

from starlette.types import Scope

from libs.common.spans import recording
from libs.common.spans.recording import SERVER, Recorder, Span, Value
from libs.common.spans.trace_context import SPAN_BYTES, TraceContext, is_sampled, parse

REQUEST: Final = "muster.request"
APPEND: Final = "muster.log.append"
# Header of an answer that names the trace.
TRACE_ID: Final = b"x-trace-id"
TENANT_TRACES_MAX: Final = 100
# An answer with this status or a higher one is an error of the server.
SERVER_ERROR: Final = 500
READS: Final = ("GET", "HEAD", "OPTIONS")


class TraceBudget:
    """Counts the traces that each tenant began in the present second."""

    def __init__(self) -> None:
        self.second = 0
        self.begun: dict[str, int] = {}

    def take(self, tenant: str, second: int) -> bool:
        """Return whether the tenant may begin one more trace, and count it."""
        if second != self.second:
            self.second = second
            self.begun = {}
        count = self.begun.get(tenant, 0)
        if count >= TENANT_TRACES_MAX:
            return False
        self.begun[tenant] = count + 1
        return True


class RequestTrace:
    """The trace of one request. `attributes` may be added until its end."""

    __slots__ = ("attributes", "began_ns", "context", "parent_id", "recorder")

    def __init__(self, recorder: Recorder, context: TraceContext, parent_id: str) -> None:
        self.recorder = recorder
        self.context = context
        self.parent_id = parent_id
        self.began_ns = time.time_ns()
        self.attributes: dict[str, Value] = {}

    def end(self, scope: Scope, route: str, status: int, tenant: str) -> None:
        """Record the span of the request. Status 0: the client left before the answer."""
        method: str = scope["method"]
        self.recorder.record(
            Span(
                REQUEST,
                trace_id=self.context.trace_id,
                span_id=self.context.span_id,
                parent_id=self.parent_id,
                start_ns=self.began_ns,
                end_ns=time.time_ns(),
                attributes={
                    "http.request.method": method,
                    "http.route": route,
                    "http.response.status_code": status,
                    "muster.request.id": scope["request_id"],
                    "muster.tenant": tenant,
                    **self.attributes,
                },
                kind=SERVER,
                error=f"status {status}" if status >= SERVER_ERROR else "",
            )
        )


def begin(scope: Scope, budget: TraceBudget, is_model: bool, tenant: str) -> RequestTrace | None:
    """Return the request's trace; None if it is not recorded."""
    recorder = recording.active
    if recorder is None:
        return None
    given = parse(scope["header"].get(b"traceparent", b"").decode("latin-1"))
    if given is not None:
        trace_id, parent_id, wanted = given.trace_id, given.span_id, given.is_sampled
    else:
        is_job = not is_model and scope["method"] not in READS
        percent = recorder.job_percent if is_job else recorder.request_percent
        trace_id, parent_id = _own_trace_id(scope), ""
        wanted = is_sampled(trace_id, percent)
    if not wanted or not budget.take(tenant, int(time.monotonic())):
        return None
    return RequestTrace(recorder, TraceContext(trace_id, urandom(SPAN_BYTES).hex()), parent_id)


async def appended(kind: str, stored: asyncio.Future[int]) -> int:
    """Wait until the log has acknowledged facts, and return the sequence of their commit.

    It is a span of the request for which the present task works. A cancellation does not reach the
    writer.
    """
    began_ns = time.time_ns()
    seq = await asyncio.shield(stored)
    recorder, work = recording.active, recording.current.get()
    if recorder is not None and work is not None:
        context = work.context
        recorder.record(
            Span(
                APPEND,
                trace_id=context.trace_id,
                span_id=urandom(SPAN_BYTES).hex(),
                parent_id=context.span_id,
                start_ns=began_ns,
                end_ns=time.time_ns(),
                attributes={"muster.fact.kind": kind, "muster.log.seq": seq},
            )
        )
    return seq


def _own_trace_id(scope: Scope) -> str:
    """Return the request's id as a trace id, or a new one if the client chose the request's id."""
    if b"x-request-id" not in scope["header"]:
        request_id: str = scope["request_id"]
        return request_id.replace("-", "")
    return urandom(16).hex()
