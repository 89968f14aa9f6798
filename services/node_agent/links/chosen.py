"""Records which transport this node's links use: once for each other node, and when it changes.

The fact may be lost, and is then recorded after the agent's next start. RDMA that fails is not
tried for minutes (`fabric/choice.py`), so another node cannot cause many facts. Tests:
tests/unit/test_link_choice.py.
"""

from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Final, Protocol

from libs.common.facts import LinkChosen
from libs.common.messages.link_messages import LinkOffer
from libs.common.model import NodeId
from libs.common.state.node import LINKS_KEPT, TEXT_MAX

# Nodes that are remembered; one that was forgotten is recorded again.
NODES_MAX: Final = 16 * LINKS_KEPT


class Records(Protocol):
    """The writer of this node's facts."""

    def put(self, facts: list[LinkChosen]) -> object:
        """Append facts in a moment."""


class ChosenLinks:
    """The choices that one agent has recorded in this incarnation. Call `note` from any thread."""

    def __init__(
        self,
        node_id: NodeId,
        records: Records,
        incarnation: Callable[[], int],
        loop: AbstractEventLoop,
    ) -> None:
        self.node_id, self.records = node_id, records
        self.incarnation, self.loop = incarnation, loop
        self._said: dict[NodeId, tuple[int, str]] = {}

    def note(self, node_id: NodeId, choice: LinkOffer) -> None:
        """Record a choice if it is new. After the end of the loop it is dropped."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._record, node_id, choice)

    def _record(self, node_id: NodeId, choice: LinkOffer) -> None:
        now = self.incarnation(), choice.transport
        if self._said.pop(node_id, None) != now:
            fact = LinkChosen(
                node_id=self.node_id,
                incarnation=now[0],
                peer=node_id,
                transport=choice.transport,
                why=choice.why[:TEXT_MAX],
            )
            self.records.put([fact])
        self._said[node_id] = now
        if len(self._said) > NODES_MAX:
            del self._said[next(iter(self._said))]
