"""Messages about copies from node to node, between a gateway and the dialling node.

Pure. docs/decisions/0049 describes the token that a copy uses.
"""

from typing import Final

import msgspec

from libs.common.messages.link_messages import LinkOffer
from libs.common.model import JobId, NodeId

COPYING: Final = "copying"
COPIED: Final = "copied"
FAILED: Final = "failed"
# Fault: the node has no copy of that id. Agents remember a bounded number of copies.
UNKNOWN: Final = "unknown"


class CopyStart(msgspec.Struct, frozen=True, tag="start"):
    """gateway -> dialling agent: copy a file or folder of another node into a job's directory.

    `job_id`, `attempt` and `path` name the target; `source_*` name the file or folder on `node_id`,
    which takes the link at `address` with `token`, over the transport of `offer` or TCP.
    """

    copy: str
    tenant: str
    job_id: JobId
    attempt: int
    path: bytes
    node_id: NodeId
    source_job_id: JobId
    source_attempt: int
    source_path: bytes
    address: str
    token: bytes
    offer: LinkOffer = LinkOffer()


class CopyPoll(msgspec.Struct, frozen=True, tag="look"):
    """gateway -> dialling agent: return the state of a copy."""

    copy: str


class CopyState(msgspec.Struct, frozen=True):
    """dialling agent -> gateway: the progress or the result of a copy.

    `skipped` counts links that lead out of the copied folder. `placed` is the path of the copy in
    the working directory. `transport` carries the bytes, and `transport_why` is the reason; empty:
    there is no link yet. `fault` and `text` say why there is no copy.
    """

    copy: str
    state: str = FAILED
    node_id: NodeId = NodeId("")
    source_job_id: JobId = JobId("")
    source_path: bytes = b""
    to_job_id: JobId = JobId("")
    placed: bytes = b""
    files: int = 0
    folders: int = 0
    skipped: int = 0
    size_bytes: int = 0
    taken_ms: int = 0
    transport: str = ""
    transport_why: str = ""
    fault: str = ""
    text: str = ""


CopyRequest = CopyStart | CopyPoll
