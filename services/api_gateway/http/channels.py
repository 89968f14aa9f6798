"""/v1/jobs/{ref}/exec and forward: WebSockets into a running job (`channels/channel.py` describes
the messages).

The request is base64 of JSON in the header Muster-Channel, because proxies log addresses. The
gateway checks everything and the node agrees before the WebSocket is accepted, so a refusal is a
problem document as on any route. Tests: tests/integration/test_cli_exec.py and
test_cli_port_forward.py.
"""

import os
import re
import shlex
from base64 import b64decode
from binascii import Error as NotBase64
from contextlib import suppress
from typing import Final

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from libs.common.errors import Refused, Unavailable
from libs.common.messages.channel_messages import (
    COMMAND_BYTES_MAX,
    ChannelClose,
    ChannelOpen,
    Exec,
    Forward,
)
from libs.common.model import NodeId
from libs.common.open_share import TENANT_FULL, OpenShare
from libs.common.safety.redaction import redacted
from libs.common.state.cluster import Job
from services.api_gateway.access import roles
from services.api_gateway.channels.channel import SIDES, Channel, ask_channel
from services.api_gateway.channels.followers import RETRY_AFTER_S
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import Query, documented, job_to_change, read, settled
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.intents.fields import check_range
from services.api_gateway.problems import Problem
from services.api_gateway.views.jobs import ended

HEADER: Final = b"muster-channel"
# A command of COMMAND_BYTES_MAX in JSON, as base64. The WebSocket library reads lines of up to 8
# KiB.
HEADER_BYTES_MAX: Final = 8_000
CHANNELS_MAX: Final = 1_000
DETAIL_MAX: Final = 1_024
TERM: Final = re.compile(r"[\w.+-]{0,64}", re.ASCII)
REQUESTS: Final[dict[str, type[Exec] | type[Forward]]] = {
    "/v1/jobs/{ref}/exec": Exec,
    "/v1/jobs/{ref}/forward": Forward,
}
_PATH: Final = re.compile(r"/v1/jobs/([^/]+)/(exec|forward)")

router = APIRouter(tags=["streams"])


class ChannelQuery(Query, frozen=True):
    """The query of a channel.

    `node`: the node of the job to connect to; empty: the node of rank 0.
    """

    node: str = ""


@router.get("/v1/jobs/{ref}/exec", openapi_extra=documented(ChannelQuery))
async def execute(request: Request, ref: str) -> Response:
    """Open a WebSocket to a command that runs beside the job, in its environment."""
    return await _upgrade(request, ref)


@router.get("/v1/jobs/{ref}/forward", openapi_extra=documented(ChannelQuery))
async def forward(request: Request, ref: str) -> Response:
    """Open a WebSocket to a port on which the job listens on its node."""
    return await _upgrade(request, ref)


async def _upgrade(request: Request, ref: str) -> Response:
    """Refuse a plain HTTP request."""
    await settled(request, ChannelQuery)
    job_to_change(request, ref)
    raise Problem(
        426,
        "this route is a WebSocket: send an upgrade request, or use `muster exec` or `muster "
        "port-forward`",
    )


def route_of(scope: Scope) -> str | None:
    """Return the route's template and put its parameters into the scope; None for other paths."""
    found = _PATH.fullmatch(scope["path"])
    if found is None:
        return None
    scope["path_params"] = {"ref": found[1]}
    return f"/v1/jobs/{{ref}}/{found[2]}"


class Channels:
    """The WebSockets of one gateway. The edge has authenticated and authorised the request."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.open = OpenShare(CHANNELS_MAX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send, route: str) -> None:
        """Serve one WebSocket. Raises Problem, Refused or Unavailable before it is accepted."""
        tenant = scope["principal"].tenant
        if refused := self.open.take(tenant):
            raise _too_many(tenant, refused)
        try:
            node_id, opened = await self._open(scope, route)
            await send({"type": "websocket.accept"})
            await receive()  # websocket.connect
            await Channel(
                gateway=self.gateway,
                scope=scope,
                node_id=node_id,
                opened=opened,
                receive=receive,
                send=send,
            ).run()
        finally:
            self.open.give_back(tenant)
            if "place" in scope:
                scope["place"].leave()

    async def _open(self, scope: Scope, route: str) -> tuple[NodeId, ChannelOpen]:
        """Authorise the request, read it, and open the channel on the node.

        Authorisation comes before the header is read, so that a denied request costs little.
        """
        principal = scope["principal"]
        query = read(HTTPConnection(scope), ChannelQuery)
        if query.min_seq > self.gateway.cluster.seq:
            await self.gateway.settle(query.min_seq)
        job = self.gateway.lookup.job(scope["path_params"]["ref"], principal)
        roles.check_change(principal, f"job {job.job_id}", job.tenant, job.user)
        request = _channel_request(scope, REQUESTS[route])
        words = shlex.join(request.command) if isinstance(request, Exec) else f"port {request.port}"
        scope["detail"] = redacted(words)[:DETAIL_MAX]
        node_id = _node_of(job, query.node)
        scope["place"] = self.gateway.places.take(principal.tenant, job.job_id)
        opened = ChannelOpen(os.urandom(12).hex(), job.job_id, job.attempt, request)
        try:
            await ask_channel(self.gateway, node_id, opened)
        except Refused as error:
            raise Problem(409, f"job {job.job_id}: {error}") from error
        except Unavailable:
            with suppress(Refused, Unavailable):
                await ask_channel(self.gateway, node_id, ChannelClose(opened.channel))
            raise
        return node_id, opened


def _too_many(tenant: str, refused: str) -> Problem:
    if refused == TENANT_FULL:
        text = (
            f"tenant {tenant} has as many channels open at this gateway as one tenant may have "
            "now: close one, or use another gateway"
        )
        return Problem(429, text, retry_after_s=RETRY_AFTER_S)
    return Problem(
        503,
        f"{CHANNELS_MAX} channels are open at this gateway, the maximum: close one, or use another "
        "gateway",
    )


def _channel_request(scope: Scope, kind: type[Exec] | type[Forward]) -> Exec | Forward:
    """Return the request in the header Muster-Channel. Raises Refused."""
    raw = scope["header"].get(HEADER, b"")
    if len(raw) > HEADER_BYTES_MAX:
        raise Refused(
            f"the header Muster-Channel has {len(raw)} bytes: send at most {HEADER_BYTES_MAX}"
        )
    try:
        request = msgspec.json.decode(b64decode(raw, validate=True), type=kind)
    except (NotBase64, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(
            f"the header Muster-Channel is not valid: {error}: send the request as base64 of JSON"
        ) from error
    if isinstance(request, Forward):
        check_range("port", request.port, 1, 65_535)
        return request
    _check_exec(request)
    return request


def _check_exec(request: Exec) -> None:
    if not request.command or not request.command[0] or "\0" in "".join(request.command):
        raise Refused("command: empty, or it contains a NUL byte: give a list of words")
    if sum(len(word.encode()) for word in request.command) > COMMAND_BYTES_MAX:
        raise Refused(
            f"command: longer than {COMMAND_BYTES_MAX} bytes: send a longer script to the input of "
            "a shell, with `muster exec -i JOB -- sh`"
        )
    check_range("rows", request.rows, SIDES.start, SIDES.stop - 1)
    check_range("columns", request.columns, SIDES.start, SIDES.stop - 1)
    if TERM.fullmatch(request.term) is None:
        raise Refused(
            f"term: {request.term[:64]!r} is not valid: give a terminal type such as xterm"
        )


def _node_of(job: Job, wanted: str) -> NodeId:
    """Return the node to connect to. Raises Problem if the job does not run there."""
    if ended(job):
        raise Problem(410, f"job {job.job_id} has ended and is {job.state}", state=job.state)
    if job.state != "running":
        raise Problem(
            425,
            f"job {job.job_id} is not running: it is {job.state}",
            state=job.state,
        )
    members = sorted(job.members.values(), key=lambda member: member.rank)
    found = next((member.node_id for member in members if wanted in ("", member.node_id)), None)
    if found is None:
        raise Problem(
            422,
            f"node: job {job.job_id} does not run on {wanted[:64]!r}: give one of "
            f"{', '.join(member.node_id for member in members[:8])}",
            candidates=[member.node_id for member in members],
        )
    return found


def problem_of(error: Problem | Refused | Unavailable) -> Problem:
    """Return the problem for an error, as `app.py` does on the other routes."""
    return (
        error
        if isinstance(error, Problem)
        else Problem(422 if isinstance(error, Refused) else 503, str(error))
    )
