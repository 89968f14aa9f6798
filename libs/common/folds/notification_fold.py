"""Apply facts about notifications to the cluster's state: which destinations there are.

Pure and total, called by `fold.apply` alone.
"""

from typing import Final

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.state.cluster import Cluster
from libs.common.state.notifications import Destination

# Destinations of one tenant, and of the cluster: each has a task and a queue at the sender.
OF_TENANT_MAX: Final = 20
DESTINATIONS_MAX: Final = 1_000


def destination_key(tenant: str, name: str) -> str:
    """Return the key of a destination in the state. A tenant's name has no dot."""
    return f"{tenant}.{name}"


def was_set(cluster: Cluster, fact: f.NotificationSet, stamp: Stamp) -> Change:
    """Set the destination; a new one gets the first free slot of its tenant."""
    key = destination_key(fact.tenant, fact.name)
    known = cluster.notifications.get(key)
    slot = known.slot if known is not None else free_slot(cluster, fact.tenant)
    if slot is None:
        return IGNORED
    cluster.notifications[key] = Destination(
        tenant=fact.tenant,
        name=fact.name,
        form=fact.form,
        shown=fact.shown,
        kinds=fact.kinds,
        user=fact.user,
        own=fact.own,
        failures=fact.failures,
        models=fact.models,
        nodes=fact.nodes,
        tenants=fact.tenants,
        version=fact.version,
        slot=slot,
        created_seq=known.created_seq if known is not None else stamp.seq,
        set_ns=stamp.at_ns,
        address_id=fact.address_id,
    )
    return Change()


def removed(cluster: Cluster, fact: f.NotificationRemoved, stamp: Stamp) -> Change:
    """Remove the destination."""
    key = destination_key(fact.tenant, fact.name)
    return Change() if cluster.notifications.pop(key, None) is not None else IGNORED


def free_slot(cluster: Cluster, tenant: str) -> int | None:
    """Return the first free slot of a tenant; None if it or the cluster has no room."""
    if len(cluster.notifications) >= DESTINATIONS_MAX:
        return None
    used = [each.slot for each in cluster.notifications.values() if each.tenant == tenant]
    return next((slot for slot in range(OF_TENANT_MAX) if slot not in used), None)
