"""Fill levels of the log up to which a gateway records each kind of fact. One table, pure.

Submissions stop first, then other changes that users ask for, then access records and the changes
that need one. Facts that end something may use nearly all of the log. The rest is for the facts of
the scheduler, quota and the agents (releases, ends, terms, leases, charges), which no gateway
records. Tests: tests/unit/test_room.py.
"""

from typing import Final

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId
from libs.common.state.cluster import Cluster

SUBMISSIONS: Final = 0.80
CHANGES: Final = 0.85
RECORDS: Final = 0.92
ENDINGS: Final = 0.97

LEVELS: Final[dict[type[f.Fact], float]] = {
    f.JobSubmitted: SUBMISSIONS,
    f.ModelDeployed: SUBMISSIONS,
    f.JobUpdated: SUBMISSIONS,
    f.RequeueRequested: SUBMISSIONS,
    f.ModelScaled: CHANGES,
    f.ModelAliasSet: CHANGES,
    f.ModelShareSet: CHANGES,
    f.ModelLimitsSet: CHANGES,
    f.ModelAdapterSet: CHANGES,
    f.ModelKeepRequested: CHANGES,
    f.AllocationExtended: CHANGES,
    f.QueueSet: CHANGES,
    f.ReservationSet: CHANGES,
    f.GpuControlRequested: CHANGES,
    f.GpuServiceSet: CHANGES,
    f.FabricTestRequested: CHANGES,
    f.JobDiagnosed: CHANGES,
    f.LockRequested: CHANGES,
    f.NodeDrainCleared: ENDINGS,
    f.LeaseProfileSet: CHANGES,
    f.NodeHoldCleared: ENDINGS,
    f.AccessRecorded: RECORDS,
    f.ModelUsed: RECORDS,
    f.SecretSet: RECORDS,
    f.NotificationSet: CHANGES,
    f.KeyCreated: RECORDS,
    f.KeyRotated: RECORDS,
    f.KeyLimitsSet: RECORDS,
    f.TenantSet: RECORDS,
    f.PriceSet: RECORDS,
    f.IdlePolicySet: RECORDS,
    f.NodeInvited: RECORDS,
    f.NodeJoined: RECORDS,
    f.CancelRequested: ENDINGS,
    f.ModelUndeployed: ENDINGS,
    f.ModelKeepDropped: ENDINGS,
    f.ReservationCleared: ENDINGS,
    f.SecretRemoved: ENDINGS,
    f.NotificationRemoved: ENDINGS,
    f.KeyRevoked: ENDINGS,
    f.NodeDeclaredDead: ENDINGS,
    # A lock that cannot be renewed ends the work of its holder.
    f.LockRenewRequested: ENDINGS,
    f.LockReleaseRequested: ENDINGS,
    f.NodeRemovalRequested: ENDINGS,
    f.NodeRevoked: ENDINGS,
}


# Facts of users about a model that name it alone; they are charged to its tenant.
OF_A_MODEL: Final = (
    f.ModelScaled
    | f.ModelUndeployed
    | f.ModelAliasSet
    | f.ModelShareSet
    | f.ModelAdapterSet
    | f.ModelLimitsSet
)
# Facts that administrators record about a tenant take none of its bytes, because they stop a flood.
BY_ADMINISTRATORS: Final = (
    f.TenantSet,
    f.PriceSet,
    f.IdlePolicySet,
    f.KeyCreated,
    f.KeyRotated,
    f.KeyLimitsSet,
    f.NodeInvited,
    f.NodeJoined,
)


def level_of(fact: AnyFact) -> float:
    """Return the fill level from which a gateway refuses this fact.

    The first fact of a commit decides.
    """
    return LEVELS[type(fact)]


def tenant_of(cluster: Cluster, fact: AnyFact | f.Unknown) -> str:
    """Return the tenant that a fact is charged to; empty for operators' and gateways' facts."""
    job = cluster.jobs.get(getattr(fact, "job_id", JobId("")))
    model = cluster.models.get(fact.name) if isinstance(fact, OF_A_MODEL) else None
    return getattr(fact, "tenant", "") or (
        job.tenant if job is not None else model.tenant if model is not None else ""
    )
