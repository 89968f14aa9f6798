"""The spans of one request to a model, below the request's own (docs/spans.md).

Beside the project's names they carry those of OpenTelemetry's conventions for generative models
(`gen_ai.*`). A request that is not traced has `NOT_TRACED`, whose methods do nothing. Tests:
tests/integration/test_request_spans.py.
"""

import time
from os import urandom
from typing import Final, Protocol

from multidict import CIMultiDict

from libs.common.spans.recording import CLIENT, INTERNAL, Span, Value
from libs.common.spans.trace_context import SPAN_BYTES, TraceContext
from libs.common.state.cluster import Endpoint
from services.api_gateway.http.request_trace import RequestTrace
from services.api_gateway.openai.events import Usage
from services.api_gateway.openai.model_request import Request

LIMITS: Final = "muster.request.limits"
ROUTE: Final = "muster.request.route"
WAIT: Final = "muster.request.wait"
REPLICA: Final = "muster.request.replica"
FIRST_TOKEN: Final = "muster.request.first_token"  # nosec B105: a name
LAST_TOKEN: Final = "muster.request.last_token"  # nosec B105: a name
# The names of OpenTelemetry for what a route does; others are named by their path.
OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
# Replicas that one request may be at, first and second tries together.
OPEN_MAX: Final = 16


class RequestSpans(Protocol):
    """The spans of one request's way."""

    @property
    def trace_id(self) -> str:
        """The trace of the request; empty if it is not traced."""
        ...

    def begin(self, name: str) -> None:
        """Begin a step: LIMITS, ROUTE or WAIT."""
        ...

    def done(self, request: Request | None = None) -> None:
        """End the step that was begun last, with what is known of the request's way."""
        ...

    def sent(self, endpoint: Endpoint, headers: CIMultiDict[str]) -> CIMultiDict[str]:
        """Begin the span of a replica; return the headers by which it continues the trace."""
        ...

    def left(self, endpoint: Endpoint, status: int, error: str) -> None:
        """End the span of a replica; `error` is why it failed, else empty."""
        ...

    def end(self, first_s: float, is_stream: bool, usage: Usage | None) -> None:
        """Record what is left, with the time until the answer began and the tokens used."""
        ...


class NotTraced:
    """The spans of a request that is not traced."""

    trace_id = ""

    def begin(self, name: str) -> None:
        return

    def done(self, request: Request | None = None) -> None:
        return

    def sent(self, endpoint: Endpoint, headers: CIMultiDict[str]) -> CIMultiDict[str]:
        return headers

    def left(self, endpoint: Endpoint, status: int, error: str) -> None:
        return

    def end(self, first_s: float, is_stream: bool, usage: Usage | None) -> None:
        return


NOT_TRACED: Final = NotTraced()


class _AtReplica:
    """A request at one replica."""

    __slots__ = ("began_ns", "endpoint", "span_id")

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self.began_ns = time.time_ns()
        self.span_id = urandom(SPAN_BYTES).hex()


class Traced:
    """The spans of a request that is traced."""

    def __init__(self, trace: RequestTrace, path: str, model: str, adapter: str) -> None:
        self.trace = trace
        self.began_ns = time.time_ns()
        self.names: dict[str, Value] = {
            "gen_ai.operation.name": OPERATIONS.get(path, path.rpartition("/")[2]),
            "gen_ai.request.model": model,
            "gen_ai.provider.name": "muster",
        }
        self.model = adapter or model
        trace.attributes |= {**self.names, "muster.model": model}
        self.step, self.step_ns = "", 0
        self.way: dict[str, Value] = {}
        self.open: list[_AtReplica] = []
        # The replica whose answer the client gets, and its end.
        self.answered_by: _AtReplica | None = None
        self.answered_ns = 0

    @property
    def trace_id(self) -> str:
        return self.trace.context.trace_id

    def begin(self, name: str) -> None:
        self.step, self.step_ns = name, time.time_ns()

    def done(self, request: Request | None = None) -> None:
        way: dict[str, Value] = {}
        if request is not None:
            ticket = request.ticket
            way["muster.request.input_tokens_estimated"] = ticket.prompt.tokens
            if ticket.sent is not None:
                sent = ticket.sent
                self.way = {
                    "muster.request.try": request.tries,
                    "muster.request.prefix_tokens": max(0, ticket.prompt.tokens - sent.miss),
                    "muster.replica.queued_tokens": sent.queue,
                }
                way["muster.replica.job_id"] = sent.replica.job_id
        self._record(self.step, self.step_ns, time.time_ns(), way)
        self.step = ""

    def sent(self, endpoint: Endpoint, headers: CIMultiDict[str]) -> CIMultiDict[str]:
        at = _AtReplica(endpoint)
        if len(self.open) < OPEN_MAX:
            self.open.append(at)
        headers = headers.copy()
        headers["traceparent"] = TraceContext(self.trace_id, at.span_id).text
        return headers

    def left(self, endpoint: Endpoint, status: int, error: str) -> None:
        at = next((each for each in self.open if each.endpoint == endpoint), None)
        if at is None:
            return
        self.open.remove(at)
        end_ns = time.time_ns()
        if not error:
            self.answered_by, self.answered_ns = at, end_ns
        self._replica(at, end_ns, {"http.response.status_code": status} if status else {}, error)

    def end(self, first_s: float, is_stream: bool, usage: Usage | None) -> None:
        if self.step:
            now_ns = time.time_ns()
            self._record(self.step, self.step_ns, now_ns, {}, error="the request ended before")
        for at in self.open:  # a second try whose answer was not used
            self._replica(at, time.time_ns(), {"muster.request.abandoned": True}, "")
        if usage is not None:
            self.trace.attributes |= {
                "gen_ai.usage.input_tokens": usage.inputs,
                "gen_ai.usage.output_tokens": usage.outputs,
            }
        at_last = self.answered_by
        if is_stream and at_last is not None and first_s:
            first_ns = max(at_last.began_ns, self.began_ns + int(first_s * 1e9))
            self.trace.attributes["gen_ai.response.time_to_first_chunk"] = first_s
            parent = at_last.span_id
            self._record(FIRST_TOKEN, at_last.began_ns, first_ns, {}, parent=parent)
            self._record(LAST_TOKEN, first_ns, self.answered_ns, {}, parent=parent)

    def _replica(self, at: _AtReplica, end_ns: int, more: dict[str, Value], error: str) -> None:
        endpoint = at.endpoint
        attributes = {
            **self.names,
            **self.way,
            **more,
            "muster.replica.job_id": endpoint.job_id,
            "server.address": endpoint.address,
            "server.port": endpoint.port,
        }
        self._record(
            REPLICA,
            at.began_ns,
            end_ns,
            attributes,
            span_id=at.span_id,
            kind=CLIENT,
            error=error,
        )

    def _record(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        attributes: dict[str, Value],
        parent: str = "",
        span_id: str = "",
        kind: str = INTERNAL,
        error: str = "",
    ) -> None:
        context = self.trace.context
        self.trace.recorder.record(
            Span(
                name,
                trace_id=context.trace_id,
                span_id=span_id or urandom(SPAN_BYTES).hex(),
                parent_id=parent or context.span_id,
                start_ns=start_ns,
                end_ns=end_ns,
                attributes=attributes,
                kind=kind,
                error=error,
            )
        )
