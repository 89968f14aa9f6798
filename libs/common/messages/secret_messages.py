"""The agent's request for a job's secrets before it starts, and the gateway's answer.

Pure. Neither is stored or logged. The node's name is part of the subject, which the server lets no
other node use. The answer is encrypted for a key that the agent created for this one request, so no
process between them can read it.
"""

from typing import Final

import msgspec

from libs.common.model import JobId

# The entry of an answer with a RegistryLogin as JSON; no variable has this name.
REGISTRY: Final = ".registry"
# The entry with the key of a replica's attempt.
REPLICA_KEY: Final = ".replica_key"


class SecretAsk(msgspec.Struct, frozen=True):
    """agent -> gateway: a request. `public_key` is X25519, created for this request.

    `registry`: the request is for the tenant's credentials for the registry of the job's image.
    `replica_key`: it is for the key of the replica's attempt alone.
    """

    job_id: JobId
    attempt: int
    public_key: bytes
    registry: bool = False
    replica_key: bool = False


class RegistryLogin(msgspec.Struct, frozen=True):
    """The value of a secret for a registry."""

    username: str
    password: str


class SecretAnswer(msgspec.Struct, frozen=True):
    """gateway -> agent: `sealed` decrypts to MessagePack of {variable: value}.

    `refused` is why there are none.
    """

    sealed: bytes = b""
    refused: str = ""
