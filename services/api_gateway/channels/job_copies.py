"""Starts and watches copies of files from node to node; their bytes pass no gateway.

The gateway asks the serving node for a token and hands it to the dialling node, which copies and
remembers the result. Tests: tests/integration/test_copies_cluster.py.
"""

import secrets
from typing import Final, TypeVar

import msgspec

from libs.common import facts as f
from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.messages.copy_messages import UNKNOWN, CopyPoll, CopyStart, CopyState
from libs.common.messages.link_messages import LinkAsk, LinkGranted
from libs.common.model import NodeId
from libs.common.state.cluster import Job
from services.api_gateway.channels.job_files import STATUS
from services.api_gateway.gateway import Gateway
from services.api_gateway.problems import Problem

ID_BYTES: Final = 8

T = TypeVar("T")

_encode = msgspec.msgpack.Encoder().encode


class CopyShown(msgspec.Struct, frozen=True):
    """A copy from `node_id` to `to_node`.

    `state` is copying, copied or failed; `fault` is a word and `error` a text that say why it
    failed. `placed` is the path of the copy in the working directory of `to_job`. `skipped` counts
    links that were left out because they lead out of the copied folder. `transport` (rdma or tcp)
    carries the bytes, and `transport_why` says why; empty: there is no link yet.
    """

    id: str
    state: str
    node_id: str
    job_id: str
    path: str
    to_node: str
    to_job: str
    placed: str
    files: int
    folders: int
    skipped: int
    size_bytes: int
    taken_ms: int
    transport: str
    transport_why: str
    fault: str
    error: str


async def granted(gateway: Gateway, node_id: NodeId, ask: LinkAsk) -> LinkGranted:
    """Return the token of the serving node. Raises Problem."""
    _check_takes_links(gateway, node_id)
    found = await _asked(gateway, node_id, "link", _encode(ask), LinkGranted)
    if found.fault:
        raise Problem(STATUS.get(found.fault, 409), found.text)
    return found


async def started(gateway: Gateway, node_id: NodeId, start: CopyStart) -> CopyShown:
    """Start a copy at the dialling node. Raises Problem."""
    found = await _asked(gateway, node_id, "copy", _encode(start), CopyState)
    if not found.node_id:
        raise Problem(STATUS.get(found.fault, 409), found.text)
    return shown(node_id, found)


async def watched(gateway: Gateway, job: Job, name: str) -> CopyShown:
    """Return a copy from a job. Raises Problem 404, also for a copy from another job."""
    node, _, copy = name.rpartition(".")
    unknown = Problem(404, f"job {job.job_id} has no copy {name[:128]!r}: copy again if need be")
    if NodeId(node) not in gateway.cluster.nodes:
        raise unknown
    found = await _asked(gateway, NodeId(node), "copy", _encode(CopyPoll(copy)), CopyState)
    if found.fault == UNKNOWN and not found.node_id:
        raise Problem(404, found.text)
    if found.source_job_id != job.job_id:
        raise unknown
    return shown(NodeId(node), found)


def shown(node_id: NodeId, found: CopyState) -> CopyShown:
    """Return the answer for a copy that `node_id` makes. Its id names that node."""
    return CopyShown(
        id=f"{node_id}.{found.copy}",
        state=found.state,
        node_id=found.node_id,
        job_id=found.source_job_id,
        path=found.source_path.decode("utf-8", "backslashreplace"),
        to_node=node_id,
        to_job=found.to_job_id,
        placed=found.placed.decode("utf-8", "backslashreplace"),
        files=found.files,
        folders=found.folders,
        skipped=found.skipped,
        size_bytes=found.size_bytes,
        taken_ms=found.taken_ms,
        transport=found.transport,
        transport_why=found.transport_why,
        fault=found.fault,
        error=found.text,
    )


def target_node(gateway: Gateway, name: str) -> NodeId:
    """Return the node to copy to. Raises Problem."""
    if NodeId(name) not in gateway.cluster.nodes:
        raise Problem(
            404, f"to_node: node {name[:64]!r} does not exist: see the nodes with `muster nodes`"
        )
    _check_takes_links(gateway, NodeId(name))
    return NodeId(name)


def new_id() -> str:
    """Return an id that no other copy has."""
    return secrets.token_hex(ID_BYTES)


def _check_takes_links(gateway: Gateway, node_id: NodeId) -> None:
    node = gateway.cluster.nodes.get(node_id)
    if node is None or not node.link_address:
        raise Problem(
            409,
            f"node {node_id} has no links to other nodes (link_address is empty): its agent has no "
            "nkey, is older, or cannot listen. Copy through the gateway: muster cp JOB:PATH",
        )


async def _asked(gateway: Gateway, node_id: NodeId, verb: str, data: bytes, kind: type[T]) -> T:
    try:
        answer = await gateway.bus.request(
            subjects.ask_node(node_id, verb), data, gateway.settings.ask_ms / 1_000
        )
        return msgspec.msgpack.decode(answer, type=kind)
    except (Unavailable, *f.UNDECODABLE) as error:
        raise Problem(
            503,
            f"node {node_id} does not answer ({error}): see its state with `muster nodes`",
        ) from error
