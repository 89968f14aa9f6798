"""Chooses the replica for the next request: the ready one with the fewest outstanding requests of
this gateway.

Pure; time comes in as an argument (seconds of one monotonic clock). A replica that has just failed
is chosen only when no other is left, because requests notice a failure before its node records it.
Tests: tests/unit/test_openai_balancer.py.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from libs.common.state.cluster import Endpoint

SUSPECT_S: Final = 3.0
# Failures that are remembered; far more than replicas can fail within SUSPECT_S.
SUSPECTS_MAX: Final = 1_024


class Balancer:
    """Counts outstanding requests and recent failures of one gateway process."""

    def __init__(self, suspect_s: float = SUSPECT_S) -> None:
        self.suspect_s = suspect_s
        self.outstanding: dict[Endpoint, int] = {}
        self.suspect_until: dict[Endpoint, float] = {}
        self._turn = 0

    def pick(
        self, ready: Sequence[Endpoint], tried: Iterable[Endpoint], now: float
    ) -> Endpoint | None:
        """Return the replica for the next request; None if every ready replica has been tried.
        Replicas with equal load take turns.
        """
        left = [endpoint for endpoint in ready if endpoint not in tried] if tried else ready
        if len(left) < 2:
            return left[0] if left else None
        self._turn += 1
        first = self._turn % len(left)
        return min(
            (*left[first:], *left[:first]),
            key=lambda each: (self._suspect(each, now), self.outstanding.get(each, 0)),
        )

    def _suspect(self, endpoint: Endpoint, now: float) -> bool:
        return bool(self.suspect_until) and self.suspect_until.get(endpoint, 0.0) > now

    def begin(self, endpoint: Endpoint) -> None:
        self.outstanding[endpoint] = self.outstanding.get(endpoint, 0) + 1

    def end(self, endpoint: Endpoint) -> None:
        left = self.outstanding[endpoint] - 1
        if left:
            self.outstanding[endpoint] = left
        else:
            del self.outstanding[endpoint]

    def failed(self, endpoint: Endpoint, now: float) -> None:
        if len(self.suspect_until) >= SUSPECTS_MAX:
            self.suspect_until = {
                each: until for each, until in self.suspect_until.items() if until > now
            }
        if len(self.suspect_until) < SUSPECTS_MAX:
            self.suspect_until[endpoint] = now + self.suspect_s
