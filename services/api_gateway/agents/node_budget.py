"""Bounds what each node writes to the log. The servers then refuse the key of a node that writes
more.

Pure. Each node has a level, which rises with every message and drains at a steady rate; the rate
grows with the jobs that live on the node. Facts that move a job on lower the level again, because a
job has few such facts.

A gateway counts by its own clock and records its verdict as NodeRevoked. So all readers of the log
agree, even if another gateway counted differently. Docs: decision 33. Tests:
tests/unit/test_node_budget.py.
"""

from collections.abc import Sequence
from typing import Final

from libs.common import facts as f
from libs.common.change import IGNORED, Change
from libs.common.facts import Commit
from libs.common.model import NodeId

# Cost of a commit in addition to its own bytes: the servers sync it, and every reader folds it.
COMMIT_BYTES: Final = 1 << 10
# Credit for a fact that moves a job on: it pays for its own commit, and for errors or checkpoints.
MOVE_BYTES: Final = 3 << 10
# Bytes that drain in a second: once for the node, and once for each job that lives there.
BYTES_PER_S: Final = 4 << 10
MOVES: Final = (f.JobStarted, f.JobFinished, f.JobRefused, f.JobReleased)
SECOND_NS: Final = 1_000_000_000
# After its first tries, an honest writer waits longer than this before it repeats a commit that the
# log did not store.
REPEAT_NS: Final = 200_000_000


class NodeBudget:
    """The level of each node that wrote lately.

    `over` holds the nodes whose level exceeded `burst_bytes`, with the reason. If `burst_bytes` is
    0, no node has a bound.
    """

    def __init__(self, burst_bytes: int) -> None:
        self.burst_bytes = burst_bytes
        self.levels: dict[NodeId, tuple[int, int]] = {}
        self.over: dict[NodeId, str] = {}
        # The hash of the last message of each node that the log has not stored since, and when it
        # was sent.
        self.unstored: dict[NodeId, tuple[int, int]] = {}

    def wrote(self, node_id: NodeId, data: bytes, jobs: int, now_ns: int) -> bool:
        """Count a message that a node sent. Return True if this message exceeds the node's budget.

        `jobs` is the number of jobs that live on the node; `now_ns` is this machine's boot clock. A
        message without data is the node's question for the last sequence of its subject.
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
