"""The hash of a state at a place of the log, by part. Pure. `libs/common/agreement/` makes it."""

import msgspec


class StateHash(msgspec.Struct, frozen=True):
    """The digests of the parts of the state after commit `seq`; 0: none is recorded.

    `schema` is the fingerprint of the build that made it. Only hashes of one build are comparable.
    """

    seq: int = 0
    schema: str = ""
    parts: dict[str, bytes] = {}


NO_HASH = StateHash()
