"""The places for client connections in one gateway: as many as half of its files allow.

A connection needs a file, and so does each connection to a replica and to the log. The other half
is for those. If all places are taken, the connection that has waited longest for its next request
gives way to a new one. So clients that connect and send nothing, or send slowly, cannot keep out
others that send. A connection whose request is being answered is not closed; requests of one tenant
are bounded elsewhere (`libs/common/open_share.py`). An answer that was just written still leaves.
Tests: tests/unit/test_gateway_places.py, tests/attack/test_slow_clients.py.
"""

import resource
from collections import OrderedDict
from typing import Final, Protocol

# A gateway needs at least so many files for clients.
PLACES_MIN: Final = 64


class Holder(Protocol):
    """A connection that has a place."""

    def give_way(self) -> None:
        """Close at once, because another connection needs the place."""


class Places:
    """The connections of all HTTP servers of one gateway.

    `_waiting` are those without a request, and those whose answer was sent while the request's body
    is still missing; the one that has waited longest comes first.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.given_way = 0
        self._open: set[Holder] = set()
        self._waiting: OrderedDict[Holder, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def take(self, holder: Holder) -> None:
        """Give a place to a new connection, which waits for its first request."""
        self._open.add(holder)
        self._waiting[holder] = None
        if len(self._open) > self.most:
            self.given_way += 1
            oldest = next(iter(self._waiting))
            self.leave(oldest)
            oldest.give_way()

    def serve(self, holder: Holder) -> None:
        """Note that the connection's request has come: it keeps its place until it is answered."""
        self._waiting.pop(holder, None)

    def wait(self, holder: Holder) -> None:
        """Note that the connection's request is answered."""
        if holder in self._open:
            self._waiting[holder] = None

    def leave(self, holder: Holder) -> None:
        """Note that the connection is closed."""
        self._open.discard(holder)
        self._waiting.pop(holder, None)


def places_by_files() -> Places:
    """Return places for half of the files that this process may have open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        files = 1 << 20
    return Places(max(PLACES_MIN, files // 2))
