"""/v1/pulled: the models that a tenant has pulled to nodes, and their removal.

A pull itself is a job whose command begins with `{pull}` (docs/howto/pull-a-model.md). Each node
answers for its own copies only, and its numbers are not trusted. Tests:
tests/integration/test_pulled_cluster.py, tests/unit/test_gateway_pulled.py.
"""

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.common.errors import Refused, Unavailable
from libs.common.messages.pulled_messages import PulledAsk, PulledCopy, PulledReport
from libs.common.messages.senders import readable
from libs.common.model import NodeId
from libs.common.state.cluster import is_removed
from libs.common.subjects import ask_node
from libs.job.pulling.errors import PullError
from libs.job.pulling.listing import COMMIT, check_repository
from services.api_gateway.access import roles
from services.api_gateway.access.slots import NODE, NODES
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.nodes import known_node
from services.api_gateway.http.queries import (
    PageQuery,
    Query,
    answer,
    answer_list,
    documented,
    page_of,
    principal_of,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.problems import Problem
from services.api_gateway.times import LAST_INSTANT, rfc3339

ASKED_AT_ONCE: Final = 32
NODES_MAX: Final = 200
# Removing a large model takes a while.
REMOVE_S: Final = 60.0

router = APIRouter(tags=["nodes"])

_encode = msgspec.msgpack.Encoder().encode
_report = msgspec.msgpack.Decoder(PulledReport)


class PulledQuery(PageQuery, frozen=True):
    """`node_id` limits the answer to one node. `tenant`: for operators; default: their own."""

    limit: int = NODES_MAX
    node_id: str = ""
    tenant: str = ""


class UnpullQuery(Query, frozen=True):
    """The copies to remove: of `repository`, with `commit` only that one."""

    repository: str = ""
    commit: str = ""
    tenant: str = ""


class CopyOfModel(msgspec.Struct):
    """One copy of a model on a node. A copy that is not `complete` is being made, or was cut short.

    `revisions` are the names under which it was pulled, `include` the patterns of its files (empty:
    all files). `path` is its folder on the node. `job_id` is the job that made it.
    """

    repository: str
    commit: str
    revisions: list[str]
    include: list[str]
    complete: bool
    in_use: bool
    files: int
    size_bytes: int
    last_used_at: str | None
    path: str
    job_id: str


class NodePulled(msgspec.Struct):
    """The copies of a tenant on one node: their sum, and its bound (0: none).

    `error` is empty if the node answered. `left_out` counts copies that are not listed.
    """

    node_id: str
    error: str
    copies: list[CopyOfModel]
    size_bytes: int
    bound_bytes: int
    left_out: int


class Unpulled(msgspec.Struct):
    """The copies that were removed. `stays` says why others were not; empty if none stays."""

    node_id: str
    removed: list[CopyOfModel]
    stays: str


@router.get("/v1/pulled", openapi_extra=documented(PulledQuery))
async def list_pulled(request: Request) -> Response:
    """List the models that the tenant has pulled to nodes, with bytes and last use."""
    gateway, query = await settled(request, PulledQuery)
    ask = PulledAsk(_tenant(request, query.tenant))
    nodes = (
        [known_node(gateway, query.node_id).node_id]
        if query.node_id
        else [each for each in gateway.cluster.nodes if not is_removed(gateway.cluster, each)]
    )
    page, following = page_of(nodes, str, query)
    at_once = asyncio.Semaphore(ASKED_AT_ONCE)

    async def shown(node_id: NodeId) -> NodePulled:
        async with at_once:
            try:
                return _shown(node_id, await _asked(gateway, node_id, ask, _ask_s(gateway)))
            except Unavailable as error:
                return _shown(node_id, PulledReport(error=str(error)))

    async with gateway.slots.of(NODES, principal_of(request).tenant):
        rows = await asyncio.gather(*(shown(node_id) for node_id in page))
    return await answer_list("nodes", rows, {"next": following, "seq": gateway.cluster.seq})


@router.delete("/v1/pulled/{node_id}", openapi_extra=documented(UnpullQuery))
async def unpull(request: Request, node_id: str) -> Response:
    """Remove the copies of a repository from a node. Copies that jobs or models use stay."""
    gateway, query = await settled(request, UnpullQuery)
    node = known_node(gateway, node_id)
    ask = PulledAsk(_tenant(request, query.tenant), _repository(query.repository), query.commit)
    if query.commit and not COMMIT.fullmatch(query.commit):
        raise Refused(f"commit: {query.commit[:64]!r} is not a commit: give 40 hexadecimal digits")
    async with gateway.slots.of(NODE, principal_of(request).tenant):
        report = await _asked(gateway, node.node_id, ask, REMOVE_S)
    if report.error:
        raise Unavailable(f"node {node_id}: {report.error}")
    return answer(Unpulled(node_id, [_copy(each) for each in report.removed], report.stays))


def _repository(name: str) -> str:
    try:
        return check_repository(name)
    except PullError as error:
        raise Refused(f"repository: {error}") from error


def _tenant(request: Request, named: str) -> str:
    """Return the tenant whose copies are meant. Raises Problem 404 for one that is not seen."""
    principal = principal_of(request)
    if named and not roles.sees(principal, named):
        text = (
            f"tenant {named[:64]!r} does not exist, or your role may not read it: leave tenant out "
            "for your own"
        )
        raise Problem(404, text)
    return named or principal.tenant


def _ask_s(gateway: Gateway) -> float:
    return gateway.settings.ask_ms / 1_000


async def _asked(
    gateway: Gateway, node_id: NodeId, ask: PulledAsk, within_s: float
) -> PulledReport:
    """Return the answer of a node. Raises Unavailable."""
    found = await gateway.bus.request(ask_node(node_id, "pulled"), _encode(ask), within_s)
    return readable(_report, found, node_id)


def _shown(node_id: NodeId, report: PulledReport) -> NodePulled:
    return NodePulled(
        node_id=node_id,
        error=report.error,
        copies=[_copy(each) for each in report.copies],
        size_bytes=_bounded(sum(each.size_bytes for each in report.copies)),
        bound_bytes=_bounded(report.bound_bytes),
        left_out=_bounded(report.left_out),
    )


def _copy(copy: PulledCopy) -> CopyOfModel:
    return CopyOfModel(
        repository=copy.repository,
        commit=copy.commit,
        revisions=list(copy.revisions),
        include=list(copy.include),
        complete=copy.complete,
        in_use=copy.in_use,
        files=_bounded(copy.files),
        size_bytes=_bounded(copy.size_bytes),
        last_used_at=rfc3339(_bounded(copy.used_ns)),
        path=copy.path,
        job_id=copy.job_id,
    )


def _bounded(number: int) -> int:
    """Return a number of a node within the bounds of times and of JSON encoders.

    One hostile node then cannot break the answer for all others.
    """
    return min(max(number, 0), LAST_INSTANT)
