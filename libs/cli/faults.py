"""The faults of the world as the command line meets them; each is printed as one line and gives the
exit code.

A usage fault (a bad flag, a bad job file) is `libs.common.errors.Refused`, exit code 2. Everything
here exits with 1.
"""

from libs.common.errors import MusterError


class Declined(MusterError):
    """The gateway answered, and said no.

    `status` is the HTTP status; `body` the problem document, as far as it was one.
    """

    def __init__(self, text: str, status: int, body: dict[str, object] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.body = body or {}


class Unreachable(MusterError):
    """Nothing answered at the gateway's address; nothing is known to have been changed."""


class Cut(MusterError):
    """The connection broke in the middle of an answer. What was asked may have been done."""
