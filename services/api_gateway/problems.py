"""What goes wrong towards a client, as RFC 9457 problem details: what was tried, on what, and what
to do.

A `Problem` is a typed error at this edge; `Refused` (the request is not valid) and `Unavailable`
(someone did not answer) become one in `http/app.py`. Bad input never gives a 5xx.
"""

from typing import Any, Final

import msgspec

from libs.common.errors import MusterError

MEDIA_TYPE: Final = "application/problem+json"
TITLES: Final = {
    400: "Bad request",
    401: "Not authorised",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    410: "Gone",
    413: "Too large",
    422: "Not valid",
    425: "Too early",
    426: "A WebSocket is asked for",
    429: "Too many",
    500: "A bug in the gateway",
    503: "Not available now",
    507: "The log is nearly full",
}


class Problem(MusterError):
    """`more` are further members of the JSON object, such as the candidates of an
    ambiguous name.
    """

    def __init__(self, status: int, detail: str, **more: Any) -> None:  # noqa: ANN401  JSON values
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.more = more


class Denied(Problem):
    """A problem of authority: 403, or 404 for what the asker may not know of.

    It is recorded as a denial, with this text.
    """


def render(problem: Problem) -> bytes:
    """The body."""
    title = TITLES.get(problem.status, "Error")
    return msgspec.json.encode(
        {"title": title, "status": problem.status, "detail": problem.detail, **problem.more}
    )
