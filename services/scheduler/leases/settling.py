"""The wait after a restore, until no attempt can be alive that the log does not know.

Pure. A backup is older than the cluster that it is restored from: agents may run attempts that were
placed after it. Each agent starts again when it hears of the new life, and stops what the log does
not know. Until then a job that is placed again could run twice. Tests:
tests/unit/test_scheduler_settling.py.
"""

from libs.common.state.cluster import Cluster, Node, owes_nothing


def is_settled(cluster: Cluster) -> bool:
    """Return whether every usable node has registered in this life, and holds only known attempts.

    Nodes that were lost do not count: their leases have ended.
    """
    return all(_has_settled(cluster, node) for node in cluster.nodes.values())


def _has_settled(cluster: Cluster, node: Node) -> bool:
    if node.replaced:
        return False
    if not node.usable:
        return True
    return node.registered_seq > cluster.restored_seq and owes_nothing(cluster, node)
