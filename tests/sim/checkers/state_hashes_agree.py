"""Every hash that a leader recorded is the one of a fold of the log that begins anew."""

from libs.common import fold
from libs.common.agreement.tree import StateTree, differing_parts
from libs.common.reading import read
from libs.common.state.cluster import Cluster
from libs.common.state.state_hash import StateHash
from tests.sim.checkers.checker import Checker


class StateHashesAgree(Checker):
    def finished(self) -> None:
        every = self.world.plan.hash_every
        if not every:
            return
        cluster, kept = Cluster(), dict[int, StateHash]()
        for entry in self.world.stream.entries:
            before = cluster.state_hash
            commit = read(cluster.writers, entry.subject, entry.data)
            fold.apply_entry(cluster, entry.seq, entry.subject, commit)
            if entry.seq % every == 0:
                kept[entry.seq] = StateTree(cluster).hashed(cluster, entry.seq)
            recorded = cluster.state_hash
            if recorded is before:
                continue
            parts = differing_parts(kept[recorded.seq], recorded)
            if parts:
                self.fail(
                    f"the leader recorded another state after commit {recorded.seq}: "
                    f"{', '.join(parts)}"
                )
        if not cluster.state_hash.seq:
            self.fail(f"no leader recorded a hash in {cluster.seq} commits")
