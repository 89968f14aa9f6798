"""The subscriptions and requests that one connection has open, and its invalid messages. Pure.

Tests: tests/unit/test_ws_protocol.py.
"""

from typing import Final

from services.api_gateway.problems import Problem
from services.api_gateway.ws.protocol import BadMessage

OPEN_MAX: Final = 64
REQUESTS_MAX: Final = 8
BAD_MESSAGES_MAX: Final = 16

SUBSCRIPTION: Final = "subscription"
REQUEST: Final = "request"


class OpenIds:
    """The ids of one connection that are in use, each with its kind."""

    def __init__(self) -> None:
        self.kinds: dict[str, str] = {}
        self.bad = 0

    def enter(self, name: str, kind: str) -> None:
        """Take an id into use.

        Raises BadMessage if it is in use, and Problem 429 if the connection has its maximum open.
        """
        if name in self.kinds:
            raise BadMessage(
                "id", f"id: {name!r} is in use by a {self.kinds[name]}: choose another", name
            )
        if len(self.kinds) >= OPEN_MAX:
            raise Problem(
                429,
                f"{OPEN_MAX} subscriptions and requests are open on this connection, the maximum: "
                "end one first",
            )
        if kind == REQUEST and self._requests() >= REQUESTS_MAX:
            raise Problem(
                429,
                f"{REQUESTS_MAX} requests to models are open on this connection, the maximum: wait "
                "until one has ended",
            )
        self.kinds[name] = kind

    def has(self, name: str, kind: str) -> bool:
        """Return whether the id is in use for this kind."""
        return self.kinds.get(name) == kind

    def leave(self, name: str) -> None:
        self.kinds.pop(name, None)

    def note_bad(self) -> bool:
        """Count an invalid message; return whether the connection must be closed."""
        self.bad += 1
        return self.bad > BAD_MESSAGES_MAX

    def _requests(self) -> int:
        return sum(kind == REQUEST for kind in self.kinds.values())
