"""The nodes that have changed, in one list for all readers: noting a change costs the same however
many readers there are.

Pure.
"""

from collections.abc import Collection, Sized
from typing import Final

# A reader that missed more changes than this examines every node again.
KEPT_MAX: Final = 65_536
# The position of a reader that has examined nothing yet.
UNSEEN: Final = -1


class Changes:
    """The changes of `nodes`. Each reader keeps the `position` up to which it has examined them."""

    def __init__(self, nodes: Sized) -> None:
        self.position = 0
        self._nodes = nodes
        self._changed: list[int] = []

    def note(self, nodes: list[int]) -> None:
        """Note that these nodes changed."""
        self.position += len(nodes)
        self._changed += nodes
        if len(self._changed) > KEPT_MAX:
            del self._changed[: KEPT_MAX // 2]

    def note_all(self) -> None:
        """Note that every node changed."""
        self.position += 1
        self._changed.clear()

    def since(self, position: int) -> Collection[int]:
        """Return the nodes that changed after this position."""
        new = self.position - position
        if new > len(self._changed):
            return range(len(self._nodes))
        return dict.fromkeys(self._changed[-new:] if new else ())
