"""Counts the bytes that each node sends to the log, and revokes the key of a node that sends too
many (`node_budget.py`).

It counts messages as they reach the servers, with a plain subscription beside the log. Under a
flood the log stores few of them and drops those of other writers. For the same reason the servers
refuse the key as soon as this gateway asks (`admission.py`), and the record that makes the refusal
last follows later. Tests: tests/attack/test_node_floods_log.py.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from libs.common import reading, subjects
from libs.common.change import Change
from libs.common.errors import Unavailable
from libs.common.facts import Commit, NodeRevoked
from libs.common.folds.membership_fold import revocation
from libs.common.model import NodeId
from libs.common.process.cancellation import heed
from services.api_gateway.agents.node_budget import NodeBudget, moves_of
from services.api_gateway.problems import Problem

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

# Pause between attempts to record the revocation while the flood fills the log's queue.
AGAIN_S: Final = 1.0

logger = logging.getLogger(__name__)


class NodeWrites:
    """The budget of each node, kept by one gateway."""

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.budget = NodeBudget(gateway.settings.node_burst_bytes)

    async def listen(self) -> None:
        await self.gateway.bus.subscribe(subjects.node("*"), self._on_commit)

    async def _on_commit(self, subject: str, data: bytes) -> None:
        """Charge a commit that a node sends. The log may store or drop it."""
        node_id = NodeId(subjects.node_of(subject))
        node = self.gateway.cluster.nodes.get(node_id)
        jobs = len(node.members) if node is not None else 0
        if self.budget.wrote(node_id, data, jobs, self.gateway.clock.boot_ns()):
            self.gateway.start(self._revoke(node_id))

    def folded(self, subject: str, commit: Commit, changes: Sequence[Change]) -> None:
        """Credit the node for facts of a stored commit that move a job on.

        An ignored commit gives no credit.
        """
        if reading.is_untrusted(subject):
            self.budget.stored(NodeId(subjects.node_of(subject)), moves_of(commit, changes))

    async def _revoke(self, node_id: NodeId) -> None:
        """Record NodeRevoked; repeat until a revocation by this or another gateway is folded."""
        reason = self.budget.over[node_id]
        logger.error("node %s: %s; the servers refuse its key from now on", node_id, reason)
        while not revocation(self.gateway.cluster, node_id):
            try:
                await self.gateway.record(NodeRevoked(node_id=node_id, reason=reason))
            except (Unavailable, Problem) as error:
                heed()
                logger.warning("the revocation of node %s is not recorded yet: %s", node_id, error)
                await asyncio.sleep(AGAIN_S)
