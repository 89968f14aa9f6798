"""Bounds what each node writes to the log: the gateway has the servers refuse the key of a node
that writes more.

Pure. Facts that move a job on are paid for by the job, for a job has few such facts. All others
drain from the node's level at a steady rate, which grows with the jobs that live there. A gateway
counts what nodes send now, by its own clock, and records its verdict (NodeRevoked); so every reader
agrees whatever each gateway counted. Docs: decision 33. Held by tests/unit/test_node_budget.py.
"""

from collections.abc import Sequence
from typing import Final

from libs.common import facts as f
from libs.common.change import IGNORED, Change
from libs.common.facts import Commit
from libs.common.model import NodeId

# Cost of a commit beside its own bytes: the servers sync it, and every reader folds it.
COMMIT_BYTES: Final = 1 << 10
# Credit for a fact that moves a job on: it pays for its own commit, and for errors or checkpoints.
MOVE_BYTES: Final = 3 << 10
# Bytes that drain in a second: for a node without jobs, and for each job that lives there.
BYTES_PER_S: Final = 4 << 10
MOVES: Final = (f.JobStarted, f.JobFinished, f.JobRefused, f.JobReleased)
SECOND_NS: Final = 1_000_000_000
# An honest writer waits longer than this before it sends a commit again that the log did not store
# (but for its first tries).
REPEAT_NS: Final = 200_000_000


class NodeBudget:
    """The level of each node that wrote lately.

    `over` holds the nodes that passed `burst_bytes`; 0 bounds no node.
    """

    def __init__(self, burst_bytes: int) -> None:
        self.burst_bytes = burst_bytes
        self.levels: dict[NodeId, tuple[int, int]] = {}
        self.over: dict[NodeId, str] = {}
        # The hash of the last message of each node that the log has not stored since, and when it
        # was sent.
        self.unstored: dict[NodeId, tuple[int, int]] = {}

    def wrote(self, node_id: NodeId, data: bytes, jobs: int, now_ns: int) -> bool:
        """Count a message that a node sent, where `jobs` live.

        Return whether it has passed its budget just now.

        `now_ns` is this machine's boot clock. Without data it only asks where the subject stands.
        """
        size = 0 if self._is_repeated(node_id, data, now_ns) else len(data)
        level, at_ns = self.levels.get(node_id, (0, now_ns))
        drained = BYTES_PER_S * (1 + jobs) * max(0, now_ns - at_ns) // SECOND_NS
        level = max(0, level - drained) + size + COMMIT_BYTES
        self.levels[node_id] = level, now_ns
        if not self.burst_bytes or level <= self.burst_bytes or node_id in self.over:
            return False
        self.over[node_id] = (
            f"it wrote {self.burst_bytes} bytes more to the log than its work explains"
        )
        return True

    def _is_repeated(self, node_id: NodeId, data: bytes, now_ns: int) -> bool:
        """Return whether the node repeats, after a pause, a message that the log has not stored.

        While the log is full, repetitions take no room in it.
        """
        if not data:
            return False
        before, at_ns = self.unstored.get(node_id, (0, 0))
        self.unstored[node_id] = hash(data), now_ns
        return before == hash(data) and now_ns - at_ns >= REPEAT_NS

    def stored(self, node_id: NodeId, moves: int) -> None:
        """Note that the log stored a message of the node, readable or not.

        `moves` is the number of its facts that moved a job on. They cost nothing.
        """
        self.unstored.pop(node_id, None)
        if node_id in self.levels:
            level, at_ns = self.levels[node_id]
            self.levels[node_id] = max(0, level - moves * MOVE_BYTES), at_ns


def moves_of(commit: Commit, changes: Sequence[Change]) -> int:
    """Return how many facts of the commit moved a job on."""
    return sum(
        1
        for fact, change in zip(commit.facts, changes, strict=True)
        if isinstance(fact, MOVES) and change is not IGNORED
    )
