"""The fold of one member, with a hash of its state at every place of the log where one is due.

Pure. Every member hashes its state after each commit whose sequence is a multiple of
MUSTER_STATE_HASH_EVERY. The leader records its hash in the log. A member that reads the record
compares it with its own hash at that place, and stops if they differ. Tests:
tests/unit/test_agreement.py.
"""

from typing import Final

from libs.common import fold
from libs.common.agreement.build import fingerprint
from libs.common.agreement.tree import StateTree, differing_parts
from libs.common.change import Change
from libs.common.errors import Diverged
from libs.common.facts import Commit
from libs.common.state.cluster import Cluster
from libs.common.state.state_hash import NO_HASH, StateHash

# Entries of a loaded state that are hashed after each commit, so that the first hash has little
# left to do; and the most that a hash may have left to do. While more than half of that is left,
# changed entries are hashed after each commit, faster than facts change them.
WORK_A_COMMIT: Final = 8
BACKLOG_MAX: Final = 20_000
# Own hashes that are kept until the leader's record of the same place comes.
KEPT_MAX: Final = 8


class Agreement:
    """The hashes of one member. `every` 0 switches them off."""

    def __init__(self, every: int) -> None:
        self.every = every
        if every:
            fingerprint()  # before anything replaces the sources
        self.cluster: Cluster | None = None
        self.tree: StateTree | None = None
        self.kept: dict[int, StateHash] = {}
        self.compared = NO_HASH

    def apply_entry(self, cluster: Cluster, seq: int, subject: str, commit: Commit) -> list[Change]:
        """Fold a commit, and hash or compare the state where that is due.

        Raises Corrupt as `fold.apply_entry`, and Diverged if the leader recorded another state.
        """
        changes = fold.apply_entry(cluster, seq, subject, commit)
        if not self.every:
            return changes
        tree = self._tree_of(cluster)
        before = tree.backlog
        tree.note(commit.facts, changes)
        tree.work(cluster, WORK_A_COMMIT)
        if tree.backlog > BACKLOG_MAX // 2:
            tree.rework(cluster, WORK_A_COMMIT + 2 * max(0, tree.backlog - before))
        if seq % self.every == 0 and tree.backlog <= BACKLOG_MAX:
            self.kept[seq] = tree.hashed(cluster, seq)
            for old in list(self.kept)[:-KEPT_MAX]:
                del self.kept[old]
        if cluster.state_hash is not self.compared:
            self.compared = cluster.state_hash
            check(cluster.state_hash, self.kept.get(cluster.state_hash.seq))
        return changes

    def due(self, recorded: StateHash) -> StateHash:
        """Return the newest own hash that is not recorded yet."""
        newest = next(reversed(self.kept.values()), NO_HASH)
        return newest if newest.seq > recorded.seq else NO_HASH

    def _tree_of(self, cluster: Cluster) -> StateTree:
        """Return the tree of this state; a new one after the state was loaded again."""
        if self.tree is None or cluster is not self.cluster:
            self.cluster, self.tree, self.kept = cluster, StateTree(cluster), {}
            self.compared = cluster.state_hash
        return self.tree


def check(recorded: StateHash, own: StateHash | None) -> None:
    """Compare the own hash with the leader's. Raises Diverged and names the parts that differ."""
    if own is None or own.schema != recorded.schema:
        return  # this process began later, or is of another build
    parts = differing_parts(own, recorded)
    if parts:
        raise Diverged(
            f"this process holds another state than the leader after commit {recorded.seq}: "
            f"{', '.join(parts)} differ. It stops, so that nothing acts on a wrong state. Run "
            "muster cluster verify, and report a bug with muster support-bundle",
            seq=recorded.seq,
            parts=tuple(parts),
        )
