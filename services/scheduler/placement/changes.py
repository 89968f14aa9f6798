"""Which nodes have changed since somebody looked: one line of them for all who look, so that to
note a change costs the same however many there are.

Pure.
"""

from collections.abc import Collection, Sized
from typing import Final

# Who looks so seldom that more has changed than this looks at every node again.
KEPT_MAX: Final = 65_536
# Of one who has not looked yet.
UNSEEN: Final = -1


class Changes:
    """Of so many `nodes`.

    Who looks remembers the `position` up to which it has seen what changed.
    """

    def __init__(self, nodes: Sized) -> None:
        self.position = 0
        self._nodes = nodes
        self._line: list[int] = []

    def note(self, nodes: list[int]) -> None:
        self.position += len(nodes)
        self._line += nodes
        if len(self._line) > KEPT_MAX:
            del self._line[: KEPT_MAX // 2]

    def note_all(self) -> None:
        self.position += 1
        self._line.clear()

    def since(self, position: int) -> Collection[int]:
        """The nodes that changed from there on."""
        new = self.position - position
        return (
            dict.fromkeys(self._line[-new:] if new else ())
            if new <= len(self._line)
            else range(len(self._nodes))
        )
