"""The bounds and targets within which the scheduler scales a model."""

import msgspec


class ScalingTargets(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds and targets of a model that the scheduler scales. A target of 0 is not set.

    `first_token_ms` and `per_token_ms` are the wanted 90th percentiles of the time to the first
    token and of the time per output token, `concurrency` the wanted requests at one replica. After
    `idle_s` without a request the model may have no replica, if `replicas_min` is 0.
    """

    replicas_min: int = 1
    replicas_max: int
    first_token_ms: int = 0
    per_token_ms: int = 0
    concurrency: int = 0
    idle_s: int = 300
