"""Counts the requests that this gateway has open at each replica, and their parts of its time.

The count is kept apart from the routing of a model, because a retired replica, to which no request
is routed any more, is stopped when no gateway has a request open there. While n requests are open
at a replica, each has an n-th part of its time. Pure; times are nanoseconds of a clock that never
goes back. Tests: tests/unit/test_openai_open_requests.py.
"""

from libs.common.state.cluster import Endpoint


class OpenRequests:
    """The open requests of one gateway. `counts` holds replicas with at least one."""

    def __init__(self) -> None:
        self.counts: dict[Endpoint, int] = {}
        # When a replica's count changed last, and the part that a request has had by then that was
        # there since the count was 0.
        self._parts: dict[Endpoint, tuple[int, int]] = {}

    def begin(self, endpoint: Endpoint, now_ns: int) -> int:
        """Count a request, and return what `end` needs of it."""
        count = self.counts.get(endpoint, 0)
        part = self._part(endpoint, count, now_ns) if count else 0
        self._parts[endpoint] = now_ns, part
        self.counts[endpoint] = count + 1
        return part

    def end(self, endpoint: Endpoint, now_ns: int, begun: int) -> int:
        """Count a request no longer, and return its part of the replica's time.

        `begun` is what `begin` returned for it.
        """
        count = self.counts[endpoint]
        part = self._part(endpoint, count, now_ns)
        if count > 1:
            self.counts[endpoint] = count - 1
            self._parts[endpoint] = now_ns, part
        else:
            del self.counts[endpoint], self._parts[endpoint]
        return part - begun

    def _part(self, endpoint: Endpoint, count: int, now_ns: int) -> int:
        at_ns, part = self._parts[endpoint]
        return part + (now_ns - at_ns) // count
