"""A cluster that was just restored from a backup, with the nodes a and b, for tests of cores."""

from libs.common import facts as f
from libs.common import fold, subjects
from libs.common.change import Stamp
from libs.common.facts import AnyFact
from libs.common.model import AttemptRef, NodeId
from libs.common.state.cluster import Cluster
from tests.given import registered

RESTORE = f.ClusterRestored(life=1, backup="x", restore_id="r")
TERM = f.TermBegan(instance="s")


def told(*facts: AnyFact, cluster: Cluster | None = None) -> Cluster:
    """Fold facts as their writers record them: a scheduler's in the term of now."""
    cluster = cluster or Cluster()
    for fact in facts:
        writer = subjects.WRITER_OF[type(fact)]
        node_id = getattr(fact, "node_id", "") if writer == subjects.NODE_KIND else ""
        cluster.seq += 1
        stamp = Stamp(
            seq=cluster.seq, at_ns=0, epoch=cluster.epoch, writer=writer, writer_id=node_id
        )
        fold.apply(cluster, fact, stamp)
    return cluster


def restored(*before: AnyFact) -> Cluster:
    """Fold two registrations, the facts `before`, and the restore."""
    return told(TERM, registered("a"), registered("b"), *before, RESTORE)


def again(cluster: Cluster, name: str, *attempts: AttemptRef) -> None:
    """Register the node once more, with these attempts."""
    incarnation = cluster.nodes[NodeId(name)].incarnation + 1
    told(registered(name, incarnation=incarnation, attempts=attempts), cluster=cluster)
