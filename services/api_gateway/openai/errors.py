"""Errors for OpenAI clients, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.

Pure. `code` is a string or null, never a number, because clients compare it. A replica's own errors
are passed on; if one has another shape, its text is put into this one. Tests:
tests/unit/test_openai_errors.py.
"""

from typing import Any, Final

import msgspec

from libs.common.errors import MusterError
from services.api_gateway.intents.fields import UNREADABLE
from services.api_gateway.problems import Problem

INVALID: Final = "invalid_request_error"
SERVER: Final = "server_error"
WRONG_KEY: Final = "Incorrect API key provided"
NO_KEY: Final = "no API key provided"
# Characters that are quoted of a replica's error that is not JSON.
QUOTED_CHARS: Final = 500
# Retry-After when the gateway stops: another gateway, or the next one, answers.
STOPPING_S: Final = 1
CODES: Final = {
    401: "invalid_api_key",
    403: "permission_denied",
    404: "not_found",
    413: "request_too_large",
    429: "overloaded",
    503: "overloaded",
}


class ApiError(MusterError):
    """An error of the OpenAI API.

    `param` names the wrong field. `retry_after_s` becomes the header Retry-After (0: none).
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: int = 0,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = SERVER if status >= 500 else INVALID
        self.code = code
        self.param = param
        self.headers: list[tuple[bytes, bytes]] = (
            [(b"retry-after", b"%d" % retry_after_s)] if retry_after_s else []
        )


class RateLimited(ApiError):
    """A 429. `what` is "requests" or "tokens"; `headers` are the x-ratelimit-* of the answer."""

    def __init__(
        self,
        what: str,
        message: str,
        retry_after_s: int,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(429, message, "rate_limit_exceeded", retry_after_s=max(1, retry_after_s))
        self.type = what
        self.headers.extend(headers)


def render(error: ApiError) -> bytes:
    """Return the body of an answer, which is also the data of the last event in a broken stream."""
    return _shape(error.message, error.type, error.param, error.code)


def of_problem(problem: Problem) -> ApiError:
    """Return a problem of the edge or of a route in OpenAI's shape.

    A 401 for a key contains OpenAI's words, which clients look for.
    """
    is_wrong_key = problem.status == 401 and not problem.detail.startswith(NO_KEY)
    text = f"{WRONG_KEY}: {problem.detail}" if is_wrong_key else problem.detail
    return ApiError(
        problem.status,
        text,
        CODES.get(problem.status),
        retry_after_s=1 if problem.status in (429, 503) else 0,
    )


def text_of(body: bytes) -> str:
    """Return the text of a replica's error, at most its beginning."""
    try:
        return _text(msgspec.json.decode(body))[:QUOTED_CHARS]
    except UNREADABLE:
        return body[:QUOTED_CHARS].decode(errors="replace").strip()


def shaped(status: int, body: bytes, replica: str = "") -> bytes:
    """Return a replica's error unchanged if it has OpenAI's shape, else its text in that shape.

    If the error is empty, the text names the replica, whose output may say more.
    """
    try:
        found = msgspec.json.decode(body)
    except UNREADABLE:
        found = body[:QUOTED_CHARS].decode(errors="replace").strip()
    if isinstance(found, dict) and _has_message(found.get("error")):
        return body
    return _shape(
        _text(found) or _bare(status, replica), SERVER if status >= 500 else INVALID, None, None
    )


def _has_message(error: object) -> bool:
    return (
        isinstance(error, dict) and isinstance(error.get("message"), str) and bool(error["message"])
    )


def _bare(status: int, replica: str) -> str:
    model, _, number = replica.rpartition("-")
    look = f": see muster logs {model}/{number}" if model else ""
    return f"the model's server answered {status} with an empty body{look}"


def _text(found: Any) -> str:  # noqa: ANN401  JSON of any server
    if isinstance(found, dict):
        found = next(
            (found[name] for name in ("error", "message", "detail") if found.get(name)), found
        )
    if found is None or isinstance(found, str):
        return found or ""
    return msgspec.json.encode(found).decode()[:QUOTED_CHARS]


def _shape(message: str, kind: str, param: str | None, code: str | None) -> bytes:
    return msgspec.json.encode(
        {"error": {"message": message, "type": kind, "param": param, "code": code}}
    )


def gateway_stopping() -> ApiError:
    """Return the error for a request that waits when the gateway stops."""
    return ApiError(
        503,
        "this gateway stops, and no replica had room for the request yet: send it again",
        "gateway_stopping",
        retry_after_s=STOPPING_S,
    )
