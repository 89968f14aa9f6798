"""Messages about links between agents: a gateway asks for a token, the dialler asks for files.

Pure. docs/decisions/0049 says why all of them are bounded requests.
"""

from typing import Final

import msgspec

from libs.common.model import JobId, NodeId

READ: Final = "read"
# Bytes of a path, and of a message to the serving node.
PATH_BYTES_MAX: Final = 1_024
ASK_BYTES_MAX: Final = 16 << 10


class LinkOffer(msgspec.Struct, frozen=True):
    """The transport that a node offers for links, `rdma` or `tcp`, and why.

    `fabric` is the network of its RDMA port. Empty: the agent does not say it.
    """

    transport: str = ""
    why: str = ""
    fabric: str = ""


class LinkAsk(msgspec.Struct, frozen=True):
    """gateway -> serving agent: a token for `dialler`, for one session and below `path` only.

    With `model` it is for the kept weights of that request instead, and not for files of a job;
    with `upload` for the tenant's archive with that SHA-256.
    """

    dialler: NodeId
    tenant: str
    job_id: JobId
    attempt: int
    path: bytes
    direction: str = READ
    model: str = ""
    request: int = 0
    upload: str = ""


class LinkGranted(msgspec.Struct, frozen=True):
    """serving agent -> gateway: the token and the listener's address, or the fault.

    `offer` is the transport that it offers; the gateway hands it to the dialler.
    """

    token: bytes = b""
    address: str = ""
    fault: str = ""
    text: str = ""
    offer: LinkOffer = LinkOffer()


class PartAsk(msgspec.Struct, frozen=True, tag="part"):
    """dialler -> serving agent: a file's bytes from `offset` on, or names after `after`.

    The answer is a FilePart. `path` must be the granted path or below it, or a file of the
    granted weights.
    """

    path: bytes
    offset: int = 0
    after: bytes = b""


class SumAsk(msgspec.Struct, frozen=True, tag="sum"):
    """dialler -> serving agent: the SHA-256 of the first `size_bytes` bytes as they were sent."""

    path: bytes
    size_bytes: int


class Sum(msgspec.Struct, frozen=True):
    """The answer to SumAsk; `fault` names why there is none."""

    sha256: str = ""
    fault: str = ""


LinkRequest = PartAsk | SumAsk
