"""The nodes from which this one fetches nothing for a while, because they failed it.

Pure. A node that fails again is avoided twice as long. Tests: tests/unit/test_avoided_nodes.py.
"""

from typing import Final

from libs.common.model import NodeId

FIRST_S: Final = 60
LONGEST_S: Final = 3_600
# Failures that are remembered; the oldest are forgotten first.
KNOWN_MAX: Final = 1_024


class Avoided:
    """The failures of nodes, for each request to keep weights, or each upload."""

    def __init__(self) -> None:
        self._failures: dict[tuple[int | str, NodeId], tuple[int, float]] = {}

    def note(self, request: int | str, node_id: NodeId, now_s: float) -> None:
        """Note that a node failed."""
        count, _ = self._failures.pop((request, node_id), (0, 0.0))
        self._failures[request, node_id] = count + 1, now_s
        if len(self._failures) > KNOWN_MAX:
            del self._failures[next(iter(self._failures))]

    def nodes(self, request: int | str, now_s: float) -> tuple[NodeId, ...]:
        """Return the nodes to avoid now."""
        return tuple(
            node_id
            for (each, node_id), (count, at_s) in self._failures.items()
            if each == request and now_s < at_s + min(FIRST_S << min(count - 1, 10), LONGEST_S)
        )
