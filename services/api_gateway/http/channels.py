"""/v1/jobs/{ref}/exec and forward: WebSockets into a running job (`channel.py` says what travels on
one).

What is wished for comes as base64 of JSON in the header Muster-Channel, not in the address, which
proxies write down. Everything is checked, and the node has agreed, before the WebSocket is
accepted, so a refusal is a problem document as on any route. Tests:
tests/integration/test_cli_exec.py, test_cli_port_forward.py.
"""

import os
import re
import shlex
from base64 import b64decode
from binascii import Error as NotBase64
from contextlib import suppress
from typing import Final
from urllib.parse import parse_qs

import msgspec
from fastapi import APIRouter, Request
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
from libs.common.safety.redaction import redacted
from libs.common.state.cluster import Job
from services.api_gateway.access import roles
from services.api_gateway.channels.channel import SIDES, Channel, ask_channel
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import Query, documented, job_to_change, read
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
WISHES: Final[dict[str, type[Exec] | type[Forward]]] = {
    "/v1/jobs/{ref}/exec": Exec,
    "/v1/jobs/{ref}/forward": Forward,
}
_PATH: Final = re.compile(r"/v1/jobs/([^/]+)/(exec|forward)")

router = APIRouter(tags=["streams"])


class ChannelQuery(Query, frozen=True):
    """Which node of the job; empty: the first one."""

    node: str = ""


@router.get("/v1/jobs/{ref}/exec", openapi_extra=documented(ChannelQuery))
async def execute(request: Request, ref: str) -> Response:
    """A WebSocket to a command that runs beside the job, in its surroundings."""
    return _upgrade(request, ref)


@router.get("/v1/jobs/{ref}/forward", openapi_extra=documented(ChannelQuery))
async def forward(request: Request, ref: str) -> Response:
    """A WebSocket to a port on which the job listens on its node."""
    return _upgrade(request, ref)


def _upgrade(request: Request, ref: str) -> Response:
    """Who asks in plain HTTP."""
    read(request, ChannelQuery)
    job_to_change(request, ref)
    raise Problem(426, "this route is a WebSocket: use muster exec or muster port-forward")


def route_of(scope: Scope) -> str | None:
    """The route's template; what stands in its place goes into the scope."""
    found = _PATH.fullmatch(scope["path"])
    if found is None:
        return None
    scope["path_params"] = {"ref": found[1]}
    return f"/v1/jobs/{{ref}}/{found[2]}"


class Channels:
    """All WebSockets of one gateway.

    The edge has found out who asks, and that their role reaches this far.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.count = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send, route: str) -> None:
        """Raises Problem, Refused or Unavailable before anything was accepted."""
        if self.count >= CHANNELS_MAX:
            raise Problem(
                503,
                f"{CHANNELS_MAX} channels are open at this gateway, and no more may be: close one",
            )
        self.count += 1
        try:
            node_id, opened = await self._open(scope, route)
            await send({"type": "websocket.accept"})
            await receive()  # websocket.connect
            await Channel(self.gateway, node_id, opened, receive, send).run()
        finally:
            self.count -= 1
            if "place" in scope:
                scope["place"].leave()

    async def _open(self, scope: Scope, route: str) -> tuple[NodeId, ChannelOpen]:
        """Authorise the request, then read what it asks for: a request that is denied costs no
        parsing and no patterns.
        """
        principal = scope["principal"]
        job = self.gateway.lookup.job(scope["path_params"]["ref"], principal)
        roles.check_change(principal, f"job {job.job_id}", job.tenant, job.user)
        wish = _wish(scope, WISHES[route])
        words = shlex.join(wish.command) if isinstance(wish, Exec) else f"port {wish.port}"
        scope["detail"] = redacted(words)[:DETAIL_MAX]
        node_id = _node_of(job, parse_qs(scope["query_string"].decode()).get("node", [""])[0])
        scope["place"] = self.gateway.places.take(principal.tenant, job.job_id)
        opened = ChannelOpen(os.urandom(12).hex(), job.job_id, job.attempt, wish)
        try:
            await ask_channel(self.gateway, node_id, opened)
        except Refused as error:
            raise Problem(409, f"job {job.job_id}: {error}") from error
        except Unavailable:
            with suppress(Refused, Unavailable):
                await ask_channel(self.gateway, node_id, ChannelClose(opened.channel))
            raise
        return node_id, opened


def _wish(scope: Scope, kind: type[Exec] | type[Forward]) -> Exec | Forward:
    """Raises Refused."""
    raw = next((value for name, value in scope["headers"] if name == HEADER), b"")
    if len(raw) > HEADER_BYTES_MAX:
        raise Refused(
            f"the header Muster-Channel has {len(raw)} bytes: send at most {HEADER_BYTES_MAX}"
        )
    try:
        wish = msgspec.json.decode(b64decode(raw, validate=True), type=kind)
    except (NotBase64, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(
            f"the header Muster-Channel is not what is wished for, as base64 of JSON: {error}"
        ) from error
    if isinstance(wish, Forward):
        check_range("port", wish.port, 1, 65_535)
        return wish
    _check_exec(wish)
    return wish


def _check_exec(wish: Exec) -> None:
    if not wish.command or not wish.command[0] or "\0" in "".join(wish.command):
        raise Refused("command: name a command, in text without NUL bytes")
    if sum(len(word.encode()) for word in wish.command) > COMMAND_BYTES_MAX:
        raise Refused(
            f"command: at most {COMMAND_BYTES_MAX} bytes; give a longer script to a shell's "
            "input: muster exec -i JOB -- sh"
        )
    check_range("rows", wish.rows, SIDES.start, SIDES.stop - 1)
    check_range("columns", wish.columns, SIDES.start, SIDES.stop - 1)
    if TERM.fullmatch(wish.term) is None:
        raise Refused("term: the name of a kind of terminal")


def _node_of(job: Job, wanted: str) -> NodeId:
    """Raises Problem while the job does not run there."""
    if ended(job):
        raise Problem(410, f"job {job.job_id} has ended: it is {job.state}", state=job.state)
    if job.state != "running":
        raise Problem(
            425,
            f"job {job.job_id} does not run yet or any more: it is {job.state}",
            state=job.state,
        )
    members = sorted(job.members.values(), key=lambda member: member.rank)
    found = next((member.node_id for member in members if wanted in ("", member.node_id)), None)
    if found is None:
        raise Problem(
            422,
            f"node: job {job.job_id} does not run on {wanted[:64]!r}",
            candidates=[member.node_id for member in members],
        )
    return found


def problem_of(error: Problem | Refused | Unavailable) -> Problem:
    """As `app.py` does on the other routes."""
    return (
        error
        if isinstance(error, Problem)
        else Problem(422 if isinstance(error, Refused) else 503, str(error))
    )
