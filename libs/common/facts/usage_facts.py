"""Facts of the gateways about the use of models, and who is charged for which part.

Pure; part of the union in `facts/__init__.py`. Shares are in hundredths of a GPU times
milliseconds, as in UsageCharged.
"""

import msgspec

from libs.common.facts.fact import Fact
from libs.common.model import JobId, TenantId


class ModelUse(msgspec.Struct, frozen=True, array_like=True):
    """The requests that one key sent to one replica.

    `tenant` and `user` are those of the key, `owner` is the model's tenant, which pays for the
    replica. While several requests are at a replica, each has an equal part of its time.
    """

    tenant: TenantId
    user: str
    key_id: str
    owner: TenantId
    model: str
    job_id: JobId
    attempt: int
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    share_ms: int = 0


class ChargeLine(msgspec.Struct, frozen=True, array_like=True):
    """The part of a charge that one key's requests caused; all are empty for the smallest parts."""

    tenant: TenantId
    user: str
    key_id: str
    share_ms: int


class ModelUsed(Fact, frozen=True, tag="model.used"):
    """Requests to models that ended at one gateway since its last fact of this kind."""

    uses: tuple[ModelUse, ...]
