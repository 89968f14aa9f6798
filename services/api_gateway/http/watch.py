"""/v1/watch: server-sent events of changes, for `top` and dashboards.

An event shows the job or node as it is when the event is sent, so a slow client misses intermediate
states but never the last one. `id` is a sequence. A client that continues after it (Last-Event-ID,
or `after`) first gets what changed since.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from libs.common.model import JobId, NodeId
from libs.common.state.cluster import live_jobs
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.channels.followers import Following, following
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import (
    Query,
    documented,
    last_event_id,
    principal_of,
    settled,
)
from services.api_gateway.problems import Problem
from services.api_gateway.views.jobs import job_shown
from services.api_gateway.views.nodes import node_seen
from services.api_gateway.views.waiting import WATCHERS_MAX, Watcher

SLICE_EVENTS: Final = 50

router = APIRouter(tags=["log"])

_encode = msgspec.json.Encoder().encode


class WatchQuery(Query, frozen=True):
    """The query of a watch.

    `after`: the sequence to continue from; 0 begins with all live jobs and all nodes.
    """

    after: int = 0


@router.get("/v1/watch", openapi_extra=documented(WatchQuery))
async def watch(request: Request) -> Response:
    """Stream the events `job`, `node` and `ready`, each with the object as JSON."""
    gateway, query = await settled(request, WatchQuery)
    if len(gateway.waiting.watchers) >= WATCHERS_MAX:
        raise Problem(
            503,
            f"{WATCHERS_MAX} clients watch at this gateway, the maximum: close one, or use another "
            "gateway",
        )
    resumed = last_event_id(request)
    after = query.after if resumed is None else resumed
    principal = principal_of(request)
    frames = _events(gateway, after, principal)
    place = gateway.places.take(principal.tenant)
    return following(
        place,
        Following(frames, media_type="text/event-stream", headers={"cache-control": "no-store"}),
    )


async def _events(gateway: Gateway, after: int, principal: Principal) -> AsyncIterator[bytes]:
    watcher = Watcher()
    gateway.waiting.watchers.add(watcher)
    try:
        seq = gateway.cluster.seq
        async for piece in _events_of(
            gateway,
            principal,
            seq=seq,
            jobs=_jobs_since(gateway, after),
            nodes=list(gateway.cluster.nodes),
        ):
            yield piece
        yield _event("ready", seq, {"seq": seq})
        while True:
            if not await _await_change(watcher, gateway.settings.keepalive_ms):
                yield b": still here\n\n"
                continue
            jobs, nodes = watcher.take()
            async for piece in _events_of(
                gateway, principal, seq=gateway.cluster.seq, jobs=jobs, nodes=nodes
            ):
                yield piece
    finally:
        gateway.waiting.watchers.discard(watcher)


def _jobs_since(gateway: Gateway, after: int) -> list[JobId]:
    if after:
        return [
            job_id for job_id in gateway.cluster.jobs if gateway.history.changed(job_id) > after
        ]
    return [job.job_id for job in live_jobs(gateway.cluster)]


async def _await_change(watcher: Watcher, wait_ms: int) -> bool:
    try:
        async with asyncio.timeout(wait_ms / 1_000):
            return await watcher.woken.wait()
    except TimeoutError:
        return False


async def _events_of(
    gateway: Gateway, principal: Principal, seq: int, jobs: Iterable[JobId], nodes: Iterable[NodeId]
) -> AsyncIterator[bytes]:
    """Yield events with the present state of each job and node.

    All of them include the commit `seq`, which is their id.
    """
    waiting: list[bytes] = []
    for job_id in jobs:
        job = gateway.cluster.jobs.get(job_id)
        if job is not None and roles.sees(principal, job.tenant):
            waiting.append(_event("job", seq, job_shown(gateway.cluster, job)))
        if len(waiting) >= SLICE_EVENTS:
            yield b"".join(waiting)
            waiting = []
            await asyncio.sleep(0)
    waiting += [
        _event(
            "node",
            seq,
            node_seen(
                principal,
                gateway.cluster,
                gateway.cluster.nodes[node_id],
                gateway.pulse.heard_ns(node_id),
            ),
        )
        for node_id in nodes
    ]
    if waiting:
        yield b"".join(waiting)


def _event(kind: str, seq: int, value: object) -> bytes:
    return b"event: %s\nid: %d\ndata: %s\n\n" % (kind.encode(), seq, _encode(value))
