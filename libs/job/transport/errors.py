"""The typed error of all links: one class that names the peer, and one list of causes.

Tests: tests/contract/test_transport.py.
"""

from enum import StrEnum


class Cause(StrEnum):
    """The cause of a failed call of a link."""

    STALLED = "STALLED"
    BROKEN = "BROKEN"
    CORRUPT = "CORRUPT"
    REFUSED = "REFUSED"
    LOST = "LOST"
    CLOSED = "CLOSED"
    TOO_LARGE = "TOO_LARGE"
    REGION = "REGION"
    CHANGED = "CHANGED"
    NO_RDMA = "NO_RDMA"
    ADDRESS = "ADDRESS"


REMEDIES = {
    Cause.STALLED: "Check that the peer runs and reads; the call may be repeated.",
    Cause.BROKEN: "Check the network and that the peer runs.",
    Cause.CORRUPT: "Check the peer's version and the network path to it.",
    Cause.REFUSED: "Check the key or token that both sides use.",
    Cause.LOST: "Connect again: the peer does not know this link any more.",
    Cause.CHANGED: "Change a sent buffer only after flush().",
    Cause.NO_RDMA: "Use TCP, or load the kernel's RDMA driver and install muster-gpu[rdma].",
}


class LinkError(Exception):
    """A call of a link failed.

    Attributes:
        cause: the reason, equal to its own name as text.
        peer: the name of the peer, or its address before it has told its name.
        detail: what happened, with the figures.
    """

    def __init__(self, cause: Cause, peer: str, detail: str) -> None:
        self.cause = cause
        self.peer = peer
        self.detail = detail
        remedy = REMEDIES.get(cause, "")
        super().__init__(f"link to {peer}: {detail}. {remedy}".rstrip())

    def __reduce__(self) -> tuple[object, ...]:
        """Keep all fields when the error crosses a process border."""
        return type(self), (self.cause, self.peer, self.detail)


class WireFault(Exception):
    """One connection of a link is of no more use. The link tries to make another."""

    def __init__(self, cause: Cause, detail: str) -> None:
        self.cause = cause
        self.detail = detail
        super().__init__(detail)
