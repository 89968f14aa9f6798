"""The nodes of the roster, as links use them: a link needs the key of the node at its other end.

An agent fetches a new roster at most every few seconds, so it may not have the entry of a node that
registered a moment ago. A request for a link to such a node lets the next lease bring the roster,
and waits a bounded time for it. Tests: tests/integration/test_link_members.py.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from libs.common.messages import Roster
from libs.common.messages.file_messages import BUSY
from libs.common.model import NodeId
from services.node_agent.jobs.files import Fault

# Below MUSTER_ASK_MS, within which a gateway expects the answer, and above two heartbeats.
KNOWN_S: Final = 3.0
LOOK_S: Final = 0.05
SHOWN_MAX: Final = 64


class Members:
    """The roster of one agent. `fetch_soon` asks for a newer one, which arrives later."""

    def __init__(
        self,
        own: NodeId,
        roster: Callable[[], Roster],
        fetch_soon: Callable[[], None] = lambda: None,
        known_s: float = KNOWN_S,
    ) -> None:
        self.own, self.roster, self.fetch_soon, self.known_s = own, roster, fetch_soon, known_s

    def has(self, node_id: NodeId) -> bool:
        """Return whether the roster has the key of this node."""
        return any(
            entry.node_id == node_id and entry.key and not entry.removed
            for entry in self.roster().nodes
        )

    async def wait_for(self, node_id: NodeId) -> None:
        """Wait until the roster has the node, at most `known_s` seconds."""
        by_s = time.monotonic() + self.known_s
        while not self.has(node_id) and time.monotonic() < by_s:
            self.fetch_soon()
            await asyncio.sleep(LOOK_S)

    def check(self, node_id: NodeId) -> None:
        """Raise Fault BUSY if the roster does not have the node."""
        if not self.has(node_id):
            raise Fault(
                BUSY,
                f"node {self.own} has no key of node {node_id[:SHOWN_MAX]!r}, which may have "
                "registered a moment ago: try again in a few seconds. If that does not help, see "
                "the state of both nodes with `muster nodes`",
            )
