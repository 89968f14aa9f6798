"""The records of undeployed models, one for each name.

Pure. `folds/former_fold.py` makes the records. A deployment of the same name continues its numbers,
so no id of a replica is used twice. Tests: tests/unit/test_former_models.py.
"""

from typing import Final

import msgspec

from libs.common.model import TenantId

# For this long after its undeployment and the end of its last replica, an undeployed model counts
# towards its tenant's limit of names, and its names hide those of models that are shared with
# everyone.
FORMER_NS: Final = 3_600_000_000_000
# It stays whole for a day longer, because the clocks of two gateways may differ by hours.
FORMER_STAY_NS: Final = FORMER_NS + 86_400_000_000_000
# Records beyond this number leave the state, the oldest first (`Cluster.ordinal_floor`).
FORMER_KEPT: Final = 10_000


class FormerModel(msgspec.Struct, frozen=True):
    """The record of one name. The fields are those of the model (`Model`)."""

    tenant: TenantId
    owner_seq: int
    generation: int
    next_ordinal: int
