"""Requests to trace a job. Pure. Tests: tests/unit/test_trace_intents.py."""

from typing import Final

import msgspec

from libs.common.errors import Refused
from services.api_gateway.intents.fields import check_known, check_range, convert, names_of

DURATION_MAX_S: Final = 60
RANK_MAX: Final = 1 << 20
RANKS_MAX: Final = 4_096
RANGES: Final = (("duration_s", 1, DURATION_MAX_S),)


class TraceBody(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks and the details of a trace.

    `ranks`: empty for all. `stacks` adds Python's call stacks, `shapes` the shapes of inputs,
    `memory` allocations; each makes the trace larger and the job slower.
    """

    duration_s: int = 10
    ranks: list[int] = []
    stacks: bool = False
    shapes: bool = False
    memory: bool = False


FIELDS: Final = names_of(TraceBody)


def trace_request(body: object) -> TraceBody:
    """Return the body of `POST /v1/jobs/{ref}/traces`. Raises Refused."""
    if not isinstance(body, dict):
        raise Refused("the request body is not a JSON object: send {} to trace for 10 s")
    check_known(body, FIELDS, "field")
    asked = convert(body, TraceBody)
    check_range("duration_s", asked.duration_s, 1, DURATION_MAX_S)
    if len(asked.ranks) > RANKS_MAX:
        raise Refused(f"ranks: {len(asked.ranks)} are too many: give at most {RANKS_MAX}")
    for rank in asked.ranks:
        check_range("ranks", rank, 0, RANK_MAX)
    return asked
