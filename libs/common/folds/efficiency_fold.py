"""Apply facts about prices and idle devices, and sum up what an ended attempt used.

Pure and total, called by `fold.apply` and `job_fold.py` only.
"""

from collections.abc import Mapping
from typing import Final

from libs.common import efficiency, prices
from libs.common import facts as f
from libs.common.change import IGNORED, Change, Stamp
from libs.common.folds import member_fold
from libs.common.life import job_life
from libs.common.model import NodeId
from libs.common.prices import Price
from libs.common.state.cluster import Charge, Cluster, Job, MemberView, known_to_agent, tenant_of
from libs.common.state.job import IdleWarning, ended_members, idle_since_ns
from libs.common.state.ordering import MIB

# Models of GPUs that a charge names apart, and letters of such a name. Further ones count together.
MODELS_MAX: Final = 8
MODEL_LETTERS: Final = 64
OTHER_MODELS: Final = "other"


def price_set(cluster: Cluster, fact: f.PriceSet, stamp: Stamp) -> Change:
    """Add a price. The moments of one name never go backwards, whatever the gateways' clocks.

    In a full list a new name takes the place of the one that was removed longest ago.
    """
    kept = cluster.prices.get(fact.name, [])
    if not kept and (fact.removed or not prices.has_room(cluster.prices)):
        return IGNORED
    if not kept and len(cluster.prices) >= prices.NAMES_MAX:
        del cluster.prices[prices.removed_longest(cluster.prices)]
    from_ns = max(stamp.at_ns, kept[-1].from_ns) if kept else stamp.at_ns
    price = (
        Price(from_ns, 0, "")
        if fact.removed
        else Price(from_ns, max(0, fact.micros_per_hour), fact.currency)
    )
    cluster.prices[fact.name] = [*kept, price][-prices.KEPT_MAX :]
    return Change()


def policy_set(cluster: Cluster, fact: f.IdlePolicySet, stamp: Stamp) -> Change:
    tenant = tenant_of(cluster, fact.tenant)
    tenant.idle_action, tenant.idle_s, tenant.idle_grace_s = (
        fact.action,
        max(0, fact.idle_s),
        max(0, fact.grace_s),
    )
    tenant.idle_set_ns = max(tenant.idle_set_ns, stamp.at_ns)
    return Change()


def idle_seen(cluster: Cluster, fact: f.JobIdleSeen, stamp: Stamp) -> Change:
    """Note since when a member's devices are idle. A device that computes ends the warning."""
    job = member_fold.current(cluster, fact.job_id, fact.attempt)
    member = job.members.get(fact.node_id) if job is not None else None
    if job is None or member is None or not _runs(cluster, job, member):
        return IGNORED
    if not fact.idle_ms:
        member_fold.end_idle(cluster, job, member)
    else:
        # A member that is idle already stays so since then: a warning may name that time.
        member.idle_ns = member.idle_ns or max(1, stamp.at_ns - fact.idle_ms * 1_000_000)
        cluster.idle[job.job_id] = None
    return Change((fact.job_id,))


def _runs(cluster: Cluster, job: Job, member: MemberView) -> bool:
    return member.state == job_life.STARTED and known_to_agent(
        cluster.nodes[member.node_id], job, member
    )


def idle_warned(cluster: Cluster, fact: f.JobIdleWarned, stamp: Stamp) -> Change:
    """Note a warning, unless a device has computed, or a member ended, since it was decided."""
    job = member_fold.current(cluster, fact.job_id, fact.attempt)
    if job is None or not fact.since_ns or idle_since_ns(job) != fact.since_ns:
        return IGNORED
    if ended_members(job) != fact.ended:
        return IGNORED
    job.idle = IdleWarning(
        idle_s=fact.idle_s,
        action=fact.action,
        since_ns=fact.since_ns,
        ends_ns=fact.ends_ns,
        policy_ns=fact.policy_ns,
    )
    return Change((fact.job_id,))


def charge_of(cluster: Cluster, job: Job, run_ms: Mapping[NodeId, int], stamp: Stamp) -> Charge:
    """Return the charge of an attempt that has ended, by the run time of each member."""
    used = busy = idle = gpus = 0
    models: dict[str, int] = {}
    use = None
    for node_id, member in job.members.items():
        share_ms = 0
        for hold in member.gpus:
            name = cluster.gpus[hold.uuid].gpu.model[:MODEL_LETTERS]
            name = name if name in models or len(models) < MODELS_MAX else OTHER_MODELS
            models[name] = models.get(name, 0) + hold.share * run_ms[node_id]
            share_ms += hold.share * run_ms[node_id]
        parts = efficiency.measured(share_ms, len(member.gpus) * run_ms[node_id], member.use)
        used, busy, idle = used + share_ms, busy + parts[0], idle + parts[1]
        gpus += len(member.gpus)
        use = efficiency.of_members(use, member.use)
    all_ms = sum(run_ms.values())
    return Charge(
        job_id=job.job_id,
        attempt=job.attempt,
        tenant=job.tenant,
        share_ms=used,
        cpu_ms=job.spec.cpus_milli * all_ms,
        memory_ms=job.spec.host_bytes // MIB * all_ms,
        began_ns=job.placed_ns,
        ended_ns=stamp.at_ns,
        gpus=gpus,
        busy_share_ms=busy,
        idle_share_ms=idle,
        use=use,
        models=tuple(models.items()),
    )
