"""How full the log may be for each kind of fact that a gateway records. One table, pure.

Ordinary submissions stop first, then other changes that users ask for, then access records and what
must be on the record with one. What ends something has nearly all of the log. What the scheduler,
quota and the agents record (releases, ends, terms, leases, charges) passes no gateway: the rest of
the log is theirs. Held by tests/unit/test_room.py.
"""

from typing import Final

from libs.common import facts as f
from libs.common.facts import AnyFact

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
    f.AllocationExtended: CHANGES,
    f.QueueSet: CHANGES,
    f.ReservationSet: CHANGES,
    f.GpuControlRequested: CHANGES,
    f.GpuServiceSet: CHANGES,
    f.AccessRecorded: RECORDS,
    f.SecretSet: RECORDS,
    f.KeyCreated: RECORDS,
    f.KeyRotated: RECORDS,
    f.TenantSet: RECORDS,
    f.NodeInvited: RECORDS,
    f.NodeJoined: RECORDS,
    f.CancelRequested: ENDINGS,
    f.ModelUndeployed: ENDINGS,
    f.ReservationCleared: ENDINGS,
    f.SecretRemoved: ENDINGS,
    f.KeyRevoked: ENDINGS,
    f.NodeDeclaredDead: ENDINGS,
    f.NodeRemovalRequested: ENDINGS,
    f.NodeRevoked: ENDINGS,
}


# What an administrator records about a tenant takes none of that tenant's bytes: it is how a flood is stopped.
BY_ADMINISTRATORS: Final = (f.TenantSet, f.KeyCreated, f.KeyRotated, f.NodeInvited, f.NodeJoined)


def level_of(fact: AnyFact) -> float:
    """Return the part of the log's bytes from which on a gateway refuses this fact; it goes by the first fact of a commit."""
    return LEVELS[type(fact)]
