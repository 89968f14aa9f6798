"""Problems: errors that clients read, as RFC 9457 problem details.

Each text says what failed, on what, and what to do next. `Refused` (the request is not valid) and
`Unavailable` (another component did not answer) become a `Problem` in `http/app.py`. Bad input
never gives a 5xx.
"""

from typing import Any, Final

import msgspec

from libs.common.errors import MusterError

MEDIA_TYPE: Final = "application/problem+json"
TITLES: Final = {
    400: "Bad request",
    401: "Not authenticated",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    410: "Gone",
    413: "Too large",
    422: "Not valid",
    425: "Too early",
    426: "WebSocket required",
    429: "Too many requests",
    500: "Bug in the gateway",
    503: "Unavailable",
    507: "Not enough space",
}


class Problem(MusterError):
    """An error that a client reads.

    `more` are further members of the JSON object, for example the candidates of an ambiguous name.
    """

    def __init__(self, status: int, detail: str, **more: Any) -> None:  # noqa: ANN401  JSON values
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.more = more


class Denied(Problem):
    """A denied request: 403, or 404 for a thing that the principal must not know of.

    The access record contains the denial and this text.
    """


def render(problem: Problem) -> bytes:
    """Return the body of the answer."""
    title = TITLES.get(problem.status, "Error")
    return msgspec.json.encode(
        {"title": title, "status": problem.status, "detail": problem.detail, **problem.more}
    )
