"""The typed errors of the client. All of them are `MusterError`.

Pure. `error_of` chooses the class by the HTTP status and reads the gateway's problem document
(RFC 9457). Tests: tests/unit/test_client_errors.py.
"""

import json
import re
from typing import Any, Final

from libs.common.errors import MusterError

# The longest text of a problem in an error.
DETAIL_CHARS_MAX: Final = 4_000
# A text of a gateway that is about one field begins with its name: `nodes: 0 is out of bounds`.
# Compiled at the first use: most commands need none of them.
_FIELD: Final = r"([A-Za-z_][\w-]*(?:\.\w+|\[\d+\])*): "
_UNKNOWN: Final = r"(?:field|query parameter) '([^']{1,64})' (?:is not known|does not)"


class ApiError(MusterError):
    """The gateway refused a request, or did not answer it.

    `status` is the HTTP status, 0 without an answer. `detail` is the gateway's text, `body` its
    problem document.
    """

    def __init__(self, detail: str, status: int = 0, body: dict[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.body = body or {}


class InvalidRequest(ApiError):
    """The request is not valid (400, 413, 422). `field` names the wrong field, if one is wrong."""

    def __init__(
        self,
        detail: str,
        status: int = 0,
        body: dict[str, Any] | None = None,
        field: str | None = None,
    ) -> None:
        super().__init__(detail, status, body)
        self.field = field_of(detail) if field is None else field


class Unauthorized(ApiError):
    """The gateway does not accept the key (401)."""


class Forbidden(ApiError):
    """The role of the key does not allow the request (403)."""


class NotFound(ApiError):
    """The thing does not exist, or the key may not see it (404)."""


class Gone(NotFound):
    """The thing existed, and is kept no longer (410)."""


class Conflict(ApiError):
    """The request contradicts the state of the thing (409)."""


class TooEarly(Conflict):
    """The job has not begun yet (425)."""


class RateLimited(ApiError):
    """A limit of requests is reached (429). `retry_after_s` says when to try again."""

    @property
    def retry_after_s(self) -> float:
        """Return the pause that the gateway asks for, in seconds; 0 if it names none."""
        return retry_after_s(self.body)


class Unavailable(ApiError):
    """The gateway or a component behind it did not answer (502, 503, 504, 507, no connection).

    `sent` is False if the request never left this machine, so that nothing can have changed.
    """

    def __init__(
        self,
        detail: str,
        status: int = 0,
        body: dict[str, Any] | None = None,
        sent: bool = True,
    ) -> None:
        super().__init__(detail, status, body)
        self.sent = sent

    @property
    def retry_after_s(self) -> float:
        """Return the pause that the gateway asks for, in seconds; 0 if it names none."""
        return retry_after_s(self.body)


class TimedOut(MusterError, TimeoutError):
    """A wait of the client took longer than its `timeout_s`."""


class JobFailed(MusterError):
    """A job ended without success. `state`, `reason` and `code` (exit code) are the job's.

    All but the text have defaults, because pickle gives an exception its text alone at first.
    """

    def __init__(
        self, detail: str, state: str = "", reason: str = "", code: int | None = None
    ) -> None:
        super().__init__(detail)
        self.state = state
        self.reason = reason
        self.code = code


class FunctionFailed(JobFailed):
    """A shipped function gave no result. `traceback` is the node's, empty if it wrote none."""

    def __init__(
        self,
        detail: str,
        state: str = "",
        reason: str = "",
        code: int | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(detail, state, reason, code)
        self.traceback = traceback


class PythonMismatch(FunctionFailed):
    """The node's Python has another version than the one that pickled the function."""


BY_STATUS: Final[dict[int, type[ApiError]]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: InvalidRequest,
    422: InvalidRequest,
    425: TooEarly,
    429: RateLimited,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: Unavailable,
}


def error_of(status: int, answer: bytes, what: str, retry_after: str = "") -> ApiError:
    """Return the error for an answer of status 400 and above.

    `what` is the request in words, for answers without a problem document. `retry_after` is the
    header of that name.
    """
    body = _problem(answer)
    if "retry_after_s" not in body and retry_after.isascii() and retry_after.isdigit():
        body["retry_after_s"] = int(retry_after[:9])
    said = body.get("detail") or body.get("title")
    text = " ".join(str(said or f"{what} was answered with {status}").split())[:DETAIL_CHARS_MAX]
    candidates = body.get("candidates")
    if isinstance(candidates, list):
        text = f"{text}: {', '.join(map(str, candidates[:20]))}"
    return BY_STATUS.get(status, ApiError)(text, status, body)


def field_of(detail: str) -> str:
    """Return the field that the text is about, or an empty text."""
    found = re.match(_UNKNOWN, detail) or re.match(_FIELD, detail)
    return found[1] if found else ""


def retry_after_s(body: dict[str, Any]) -> float:
    """Return the pause of a problem document in seconds; 0 without one."""
    value = body.get("retry_after_s")
    valid = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return float(value) if valid and value is not None else 0.0


def asked_pause_s(error: ApiError) -> float:
    """Return the pause that an error asks for, in seconds; 0 if it asks for none."""
    return error.retry_after_s if isinstance(error, RateLimited | Unavailable) else 0.0


def _problem(answer: bytes) -> dict[str, Any]:
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
