"""The models to check: those that a fact touched, those whose wait ended, and all of them when the
set of live nodes changed.

Pure, and derived: a part of `State`. It also holds the replicas that finish their answers before
they are stopped.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from libs.common.model import JobId, NodeId


class Restless:
    """The models and nodes to check again.

    `models` may need more or fewer replicas. `draining` are retired replicas that are not stopped
    yet. `quiet` are the silent nodes at the last check.
    """

    def __init__(self) -> None:
        self.models: dict[str, None] = {}
        self.draining: dict[JobId, None] = {}
        self.quiet: tuple[NodeId, ...] = ()
        self._timers: list[tuple[int, str]] = []

    def wake(self, models: Iterable[str], now_ns: int, quiet: tuple[NodeId, ...]) -> None:
        """Check models again although no fact touched them, when a wait is over or the set of live
        nodes changed.
        """
        if quiet != self.quiet:
            self.quiet = quiet
            self.models.update(dict.fromkeys(models))
        while self._timers and self._timers[0][0] <= now_ns:
            self.models[heappop(self._timers)[1]] = None

    def rest(self, name: str, until_ns: int, now_ns: int) -> None:
        """Skip this model until a fact touches it, or until `until_ns`."""
        del self.models[name]
        if until_ns > now_ns:
            heappush(self._timers, (until_ns, name))
