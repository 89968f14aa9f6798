"""Carries the trace of a request over the bus, in the header `traceparent` of its messages.

Only questions that gateways and operators ask are answered with a span: an agent may not fill the
queue of spans of another process. Tests: tests/integration/test_bus_spans.py.
"""

import time
from collections.abc import Mapping
from os import urandom
from typing import Final

from libs.common import subjects
from libs.common.spans import recording
from libs.common.spans.recording import SERVER, Span, Work
from libs.common.spans.trace_context import SPAN_BYTES, TraceContext, parse
from libs.common.transport.bus import Handler

HEADER: Final = "traceparent"
ANSWER: Final = "muster.bus.answer"
# Only gateways, operators and services may publish below these (`libs/embedded/permissions.py`).
ASKED_BY_SERVICES: Final = tuple(
    f"{subject}."
    for subject in (
        subjects.NODE_ASK,
        subjects.SCHEDULER_ASK,
        subjects.QUOTA_ASK,
        subjects.AUDIT_ASK,
    )
)


def headers() -> dict[str, str] | None:
    """Return the headers of a question of the present task; None if it carries no trace on."""
    work = recording.current.get()
    if work is None or work.asks_left <= 0:
        return None
    work.asks_left -= 1
    return {HEADER: work.context.text}


async def answered(
    handler: Handler, subject: str, data: bytes, given: Mapping[str, str]
) -> bytes | None:
    """Answer a message, and record that as a span if it belongs to a recorded trace."""
    context = parse(given.get(HEADER, ""))
    recorder = recording.active
    if (
        recorder is None
        or context is None
        or not context.is_sampled
        or not subject.startswith(ASKED_BY_SERVICES)
    ):
        return await handler(subject, data)
    own = TraceContext(context.trace_id, urandom(SPAN_BYTES).hex())
    token = recording.current.set(Work(own))
    start_ns, error = time.time_ns(), "it did not end"
    try:
        answer = await handler(subject, data)
        error = ""
        return answer
    finally:
        recording.current.reset(token)
        recorder.record(
            Span(
                ANSWER,
                trace_id=own.trace_id,
                span_id=own.span_id,
                parent_id=context.span_id,
                start_ns=start_ns,
                end_ns=time.time_ns(),
                attributes={
                    "messaging.system": "nats",
                    "messaging.destination.name": subject,
                    "messaging.message.body.size": len(data),
                },
                kind=SERVER,
                error=error,
            )
        )
