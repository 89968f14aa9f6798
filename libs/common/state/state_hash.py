"""The hash of a state at a place of the log, by part. Pure. `libs/common/agreement/` makes it."""

import msgspec


class StateHash(msgspec.Struct, frozen=True):
    """The digests of the parts of the state after commit `seq`; 0: none is recorded.

    `schema` is a fingerprint of the state's fields. Only hashes of one schema are comparable.
    """

    seq: int = 0
    schema: str = ""
    parts: dict[str, bytes] = {}


NO_HASH = StateHash()
