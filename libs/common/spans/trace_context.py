"""The context of a trace as W3C Trace Context writes it: `traceparent`.

Pure. The ids of a job's spans are digests, so that each process can name the span of another one
and no fold makes an id. Tests: tests/unit/test_trace_context.py.
"""

import re
from hashlib import blake2b
from typing import Final, NamedTuple

# Version, trace id, id of the parent's span, flags; versions above 00 may append fields.
_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
FIRST_VERSION: Final = "00"
NO_VERSION: Final = "ff"
SAMPLED: Final = 1
SPAN_BYTES: Final = 8
# The rightmost 56 bits of a trace id are random, also in one that is made of a UUID.
RANDOM_DIGITS: Final = 14
RANDOM_VALUES: Final = 1 << (4 * RANDOM_DIGITS)
# Longest text that is looked at.
TEXT_MAX: Final = 512


class TraceContext(NamedTuple):
    """A trace, and the span below which the next ones hang."""

    trace_id: str
    span_id: str
    is_sampled: bool = True

    @property
    def text(self) -> str:
        """The value of the header `traceparent`."""
        return f"{FIRST_VERSION}-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


def parse(text: str) -> TraceContext | None:
    """Return the context that a `traceparent` describes; None if it is not valid."""
    found = _FORM.fullmatch(text) if len(text) <= TEXT_MAX else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == NO_VERSION or (version == FIRST_VERSION and more):
        return None
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & SAMPLED))


def derived_span_id(trace_id: str, *parts: str | int) -> str:
    """Return the id of the span that these parts name within a trace."""
    text = "\0".join((trace_id, *map(str, parts)))
    return blake2b(text.encode(), digest_size=SPAN_BYTES).hexdigest()


def is_sampled(trace_id: str, percent: int) -> bool:
    """Return whether a new trace is among the sampled `percent`.

    The rule is OpenTelemetry's: it compares the random bits of the id with a threshold, so that
    every process decides alike.
    """
    return int(trace_id[-RANDOM_DIGITS:], 16) >= RANDOM_VALUES * (100 - percent) // 100
