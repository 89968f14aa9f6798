"""The gRPC status of an HTTP answer, with its problem as metadata.

Pure. Tests: tests/unit/test_rpc_status.py.
"""

import json
from typing import Any, Final, NamedTuple

import msgspec
from grpc import StatusCode

from services.api_gateway.intents.fields import UNREADABLE
from services.api_gateway.problems import TITLES, Problem

# The problem as JSON in ASCII, and the status that REST answers with.
PROBLEM: Final = "muster-problem"
STATUS: Final = "muster-status"
REQUEST_ID: Final = "x-request-id"
# A client reads 8 KiB of metadata, in which other characters than ASCII take up to twelve bytes.
DETAIL_CHARS_MAX: Final = 600
PROBLEM_BYTES_MAX: Final = 3_000
# Headers of an answer that become its initial metadata.
SHOWN: Final = (
    "x-trace-id",
    "idempotent-replayed",
    "location",
    "x-muster-output",
    "x-muster-offset",
)

CODES: Final = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    405: StatusCode.UNIMPLEMENTED,
    408: StatusCode.DEADLINE_EXCEEDED,
    409: StatusCode.FAILED_PRECONDITION,
    410: StatusCode.NOT_FOUND,
    413: StatusCode.RESOURCE_EXHAUSTED,
    422: StatusCode.INVALID_ARGUMENT,
    425: StatusCode.FAILED_PRECONDITION,
    426: StatusCode.FAILED_PRECONDITION,
    429: StatusCode.RESOURCE_EXHAUSTED,
    500: StatusCode.INTERNAL,
    502: StatusCode.UNAVAILABLE,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.UNAVAILABLE,
    507: StatusCode.RESOURCE_EXHAUSTED,
}


class Refusal(NamedTuple):
    """The end of a call that was not carried out."""

    code: StatusCode
    detail: str
    metadata: tuple[tuple[str, str], ...]


def code_of(status: int) -> StatusCode:
    """Return the code for a status of 400 and above."""
    return CODES.get(status) or (
        StatusCode.INVALID_ARGUMENT if status < 500 else StatusCode.UNAVAILABLE
    )


def refusal(status: int, body: bytes, request_id: str = "", retry_after: str = "") -> Refusal:
    """Return the refusal for an answer: a problem document, or an error in OpenAI's shape."""
    problem = _problem(status, body)
    if retry_after.isascii() and retry_after.isdigit():
        problem.setdefault("retry_after_s", int(retry_after[:9]))
    detail = " ".join(str(problem["detail"]).split())[:DETAIL_CHARS_MAX]
    text = json.dumps(problem)
    if len(text) > PROBLEM_BYTES_MAX:
        short = {name: problem[name] for name in ("title", "status") if name in problem}
        text = json.dumps({**short, "detail": detail[: DETAIL_CHARS_MAX // 4]})
    metadata = [(STATUS, str(status)), (PROBLEM, text)]
    if request_id:
        metadata.append((REQUEST_ID, request_id))
    return Refusal(code_of(status), detail, tuple(metadata))


def of_problem(problem: Problem, request_id: str = "") -> Refusal:
    """Return the refusal for a problem that arose before there was an answer."""
    body = {"title": TITLES.get(problem.status, "Error"), "status": problem.status}
    return refusal(
        problem.status,
        msgspec.json.encode({**body, "detail": problem.detail, **problem.more}),
        request_id,
    )


def _problem(status: int, body: bytes) -> dict[str, Any]:
    """Return the members of a problem; those of an error of OpenAI's stand under `error`."""
    try:
        found = msgspec.json.decode(body)
    except UNREADABLE:
        found = None
    if not isinstance(found, dict):
        found = {"detail": body[:DETAIL_CHARS_MAX].decode(errors="replace")}
    error = found.get("error")
    if "detail" not in found and isinstance(error, dict):
        found["detail"] = str(error.get("message", ""))
    if not found.get("detail"):
        found["detail"] = str(found.get("title") or f"the request was answered with {status}")
    return {"status": status, **found}
