"""Apply facts about resident data to the cluster's state: one function per kind.

Pure and total, called by `fold.apply` only. A fact about an earlier request changes nothing. An
entry without bytes of the ledger holds none of the node's memory.
"""

from typing import Final

from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.life import kept_life
from libs.common.model import NodeId, TenantId, standby_port
from libs.common.state import ledger
from libs.common.state.cluster import Cluster, is_tenant_removed
from libs.common.state.kept import Kept, KeptEntry, kept_key

# A decision of the scheduler that a request of a gateway, or a report of the node, has overtaken.
# It changes nothing, and is no fault of the scheduler.
VOID: Final = Change()
Event = f.KeptGranted | f.KeptEvicted | f.KeptObserved


def requested(cluster: Cluster, fact: f.ModelKeepRequested, stamp: Stamp) -> Change:
    """Store the request. It replaces an earlier one, with everything that was kept for it.

    Another gateway can record this while the tenant is removed: then it is ignored.
    """
    if fact.tier not in kept_life.TIERS or is_tenant_removed(cluster, fact.tenant):
        return IGNORED
    key = kept_key(fact.model, fact.tier)
    nodes = _clear(cluster, key)
    cluster.kept[key] = Kept(
        model=fact.model,
        tier=fact.tier,
        tenant=fact.tenant,
        user=fact.user,
        request=stamp.seq,
        nodes=fact.nodes,
        node_list=fact.node_list,
        weights=fact.weights,
        files=dict(fact.files),
        files_given=bool(fact.files),
        size_bytes=fact.size_bytes,
        companion=fact.companion,
        at_ns=stamp.at_ns,
    )
    return Change((), nodes, _known(cluster, fact.model))


def dropped(cluster: Cluster, fact: f.ModelKeepDropped, stamp: Stamp) -> Change:
    key = kept_key(fact.model, fact.tier)
    if key not in cluster.kept:
        return IGNORED
    nodes = _clear(cluster, key)
    return Change((), nodes, _known(cluster, fact.model))


def tenant_removed(cluster: Cluster, tenant: TenantId) -> Change:
    """Drop all resident data of a tenant."""
    own = [kept for kept in cluster.kept.values() if kept.tenant == tenant]
    nodes = dict.fromkeys(node_id for kept in own for node_id in _clear(cluster, kept.key))
    models = dict.fromkeys(name for kept in own for name in _known(cluster, kept.model))
    return Change((), tuple(nodes), tuple(models))


def _clear(cluster: Cluster, key: str) -> tuple[NodeId, ...]:
    """Remove the request and release its bytes. Return the nodes of its entries."""
    kept = cluster.kept.pop(key, None)
    for entry in kept.entries.values() if kept is not None else ():
        ledger.let_go_of_kept(cluster, key, entry)
    return tuple(kept.entries) if kept is not None else ()


def _known(cluster: Cluster, model: str) -> tuple[str, ...]:
    return (model,) if model in cluster.models else ()


def placed(cluster: Cluster, fact: f.KeptPlaced, stamp: Stamp) -> Change:
    kept = cluster.kept.get(kept_key(fact.model, fact.tier))
    if kept is None or kept.request != fact.request or fact.node_id not in cluster.nodes:
        return VOID
    before = kept.entries.get(fact.node_id)
    state = kept_life.KEPT_LIFE.get((before.state if before is not None else "", "kept.placed"))
    if state is None or fact.number != (before.number if before is not None else 0) + 1:
        return VOID
    kept.entries[fact.node_id] = KeptEntry(fact.node_id, fact.number, state, at_ns=stamp.at_ns)
    return Change((), (fact.node_id,), _known(cluster, fact.model))


def granted(cluster: Cluster, fact: f.KeptGranted, stamp: Stamp) -> Change:
    """Give the entry its bytes.

    The node's memory is not checked here: its report may cross the grant. The scheduler grants only
    what `ledger.can_keep` allows, and takes back what a smaller report leaves no room for.
    """
    kept, entry, state = _entry_of(cluster, fact, "kept.granted")
    if kept is None or entry is None or min(fact.host_bytes, *fact.gpu_bytes.values(), 0) < 0:
        return VOID
    if entry.state not in kept_life.HOLDS_BYTES:
        size = fact.host_bytes or max(fact.gpu_bytes.values(), default=0)
        entry.size_bytes, entry.content, entry.restore_ms, entry.detail = size, "", 0, ""
    entry.state = state
    ledger.keep(cluster, kept.key, entry, fact)
    return Change((), (fact.node_id,), _known(cluster, fact.model))


def evicted(cluster: Cluster, fact: f.KeptEvicted, stamp: Stamp) -> Change:
    kept, entry, state = _entry_of(cluster, fact, "kept.evicted")
    if kept is None or entry is None:
        return VOID
    ledger.let_go_of_kept(cluster, kept.key, entry)
    kept.entries[fact.node_id] = KeptEntry(
        fact.node_id, entry.number, state, detail=fact.reason, at_ns=stamp.at_ns
    )
    return Change((), (fact.node_id,), _known(cluster, fact.model))


def observed(cluster: Cluster, fact: f.KeptObserved, stamp: Stamp) -> Change:
    """Store a report of the node.

    The first list of weight files becomes the request's. A later list that differs is a wrong
    checkpoint: the entry fails, whatever the node says about it.
    """
    kept, entry, state = _entry_of(cluster, fact, f"kept.observed:{fact.state}")
    if kept is None or entry is None or entry.number != fact.number:
        return IGNORED
    detail = fact.detail
    if fact.files and not kept.files:
        kept.files = dict(fact.files)
    elif fact.files and kept.files != fact.files:
        state, detail = kept_life.FAILED, "its files differ from the recorded ones"
    if state not in kept_life.HOLDS_BYTES:
        ledger.let_go_of_kept(cluster, kept.key, entry)
    entry.state, entry.detail = state, detail
    entry.size_bytes, entry.content = fact.size_bytes, fact.content
    entry.restore_ms = fact.restore_ms
    return Change((), (fact.node_id,), _known(cluster, fact.model))


def _entry_of(
    cluster: Cluster, fact: Event, event: str
) -> tuple[Kept | None, KeptEntry | None, str]:
    """Return the request, the node's entry and its next state; None if the fact does not apply."""
    kept = cluster.kept.get(kept_key(fact.model, fact.tier))
    entry = kept.entries.get(fact.node_id) if kept is not None else None
    if kept is None or entry is None or kept.request != fact.request:
        return None, None, ""
    state = kept_life.KEPT_LIFE.get((entry.state, event))
    return (kept, entry, state) if state is not None else (None, None, "")


def promoted(cluster: Cluster, fact: f.StandbyPromoted, stamp: Stamp) -> Change:
    """Move the route of a replica to its standby, once for each promotion.

    The route counts only while the replica is ready, so the state of the member does not matter.
    """
    job = cluster.jobs.get(fact.job_id)
    if job is None or job.spec.serve is None or job.attempt != fact.attempt:
        return IGNORED
    member = job.members.get(fact.node_id)
    if member is None or fact.number <= member.promotions:
        return IGNORED
    if fact.port not in (job.port, standby_port(job.port)):
        return IGNORED
    member.promotions, member.port = fact.number, fact.port
    return Change((fact.job_id,))
