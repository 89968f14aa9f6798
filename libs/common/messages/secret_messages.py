"""What an agent asks the gateways before it starts a job that names secrets, and what it is given.

Never stored, never logged.

Pure. The node's name is a part of the subject, which the server lets no other node use; the answer
is sealed to a key that the agent made for this one question, so nothing between the two can read
it.
"""

import msgspec

from libs.common.model import JobId


class SecretAsk(msgspec.Struct, frozen=True):
    """agent -> gateway. `public_key` is X25519, made for this question."""

    job_id: JobId
    attempt: int
    public_key: bytes


class SecretAnswer(msgspec.Struct, frozen=True):
    """`sealed` opens to MessagePack of {variable: value}; `refused` says why there is none."""

    sealed: bytes = b""
    refused: str = ""
