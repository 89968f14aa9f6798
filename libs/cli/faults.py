"""The errors of the network and of the gateway. Each is printed as one line; the exit code is 1.

A usage error (a wrong flag, a wrong job file) is `libs.common.errors.Refused`, exit code 2.
"""

from libs.common.errors import MusterError


class Declined(MusterError):
    """The gateway refused the request.

    `status` is the HTTP status, `body` the problem document, or empty without one.
    """

    def __init__(self, text: str, status: int, body: dict[str, object] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.body = body or {}


class Unreachable(MusterError):
    """Nothing answers at the gateway's address."""


class Cut(MusterError):
    """The connection broke during an answer. The gateway may have carried out the request."""
