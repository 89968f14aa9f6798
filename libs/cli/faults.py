"""The errors of the network and of the gateway. Each is printed as one line; the exit code is 1.

A usage error (a wrong flag, a wrong job file) is `libs.common.errors.Refused`, exit code 2.
"""

from libs.client.errors import ApiError, Unavailable


class Declined(ApiError):
    """The gateway refused the request.

    `status` is the HTTP status, `body` the problem document, or empty without one.
    """


class Unreachable(Unavailable):
    """Nothing answers at the gateway's address."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, sent=False)


class Cut(Unavailable):
    """The connection broke during an answer. The gateway may have carried out the request."""
