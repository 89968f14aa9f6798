"""The wait after a restore, until no attempt can be alive that the log does not know.

Pure; times are nanoseconds of this machine's boot clock. A backup is older than the cluster that it
is restored from: agents may run attempts that were placed after it. Each agent starts again when it
hears of the new life, and stops what the log does not know. Until then a job that is placed again
could run twice. A node that joined after the backup never hears of the new life. Its jobs end with
its lease: the last one of a scheduler, or one that it extended while most of its peers were not
renewed. Tests: tests/unit/test_scheduler_settling.py, tests/property/test_settling.py.
"""

from libs.common.state.cluster import Cluster, Node, owes_nothing
from services.scheduler.leases.leases import Leases
from services.scheduler.leases.renewals import Renewals


def is_over(cluster: Cluster, leases: Leases, renewals: Renewals, now: int) -> bool:
    """Return whether the wait after a restore is over. Call `Leases.silent` first."""
    return (
        cluster.settling
        and is_settled(cluster)
        and leases.are_over(cluster, now)
        and renewals.are_whole(cluster, now)
    )


def is_settled(cluster: Cluster) -> bool:
    """Return whether every usable node has registered in this life, and holds only known attempts.

    Nodes that were lost do not count: `is_over` waits for the end of every lease.
    """
    return all(_has_settled(cluster, node) for node in cluster.nodes.values())


def _has_settled(cluster: Cluster, node: Node) -> bool:
    if node.replaced:
        return False
    if not node.usable:
        return True
    return node.registered_seq > cluster.restored_seq and owes_nothing(cluster, node)
