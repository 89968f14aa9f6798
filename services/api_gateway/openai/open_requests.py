"""Counts the requests that this gateway has open at each replica.

The count is kept apart from the routing of a model, because a retired replica, to which no request
is routed any more, is stopped when no gateway has a request open there. Pure. Tests:
tests/unit/test_openai_open_requests.py.
"""

from libs.common.state.cluster import Endpoint


class OpenRequests:
    """The open requests of one gateway. `counts` holds replicas with at least one."""

    def __init__(self) -> None:
        self.counts: dict[Endpoint, int] = {}

    def begin(self, endpoint: Endpoint) -> None:
        self.counts[endpoint] = self.counts.get(endpoint, 0) + 1

    def end(self, endpoint: Endpoint) -> None:
        left = self.counts[endpoint] - 1
        if left:
            self.counts[endpoint] = left
        else:
            del self.counts[endpoint]
