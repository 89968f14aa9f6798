"""Apply facts about reservations to the cluster's state: one function per kind.

Pure and total, called by `fold.apply` alone.
"""

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.state.cluster import Cluster
from libs.common.state.reservation import Reservation


def was_set(cluster: Cluster, fact: f.ReservationSet, stamp: Stamp) -> Change:
    """Store the reservation, and forget the reservations that have ended."""
    for name in [
        name for name, known in cluster.reservations.items() if known.end_ns <= stamp.at_ns
    ]:
        del cluster.reservations[name]
    cluster.reservations[fact.reservation] = Reservation(
        name=fact.reservation,
        nodes=fact.nodes,
        start_ns=fact.start_ns,
        end_ns=fact.end_ns,
        tenants=fact.tenants,
        users=fact.users,
        user=fact.user,
    )
    return Change()


def cleared(cluster: Cluster, fact: f.ReservationCleared, stamp: Stamp) -> Change:
    return Change() if cluster.reservations.pop(fact.reservation, None) is not None else IGNORED
