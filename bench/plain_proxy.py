"""A bare proxy of Starlette and aiohttp, for `bench.gateway` to compare the gateway with.

`plain_proxy.py PORT TARGET...` sends each request on to the targets in turn, and relays answers:
streams piece by piece, others whole. It checks no key, counts nothing and records nothing. uvicorn
serves it with uvloop and httptools, as it serves the gateway.
"""

import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

STREAM = "text/event-stream"


def app(targets: list[str]) -> Starlette:
    sessions: list[aiohttp.ClientSession] = []
    target = itertools.cycle(targets)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            sessions.append(session)
            yield

    async def relay(request: Request) -> Response:
        answer = await sessions[0].post(
            next(target) + request.url.path,
            data=await request.body(),
            headers={"content-type": "application/json"},
        )
        kind = answer.headers.get("content-type", "")
        if kind.startswith(STREAM):
            return StreamingResponse(_pieces(answer), answer.status, media_type=kind)
        async with answer:
            return Response(await answer.read(), answer.status, media_type=kind)

    return Starlette(
        routes=[Route("/{path:path}", relay, methods=["POST"])],
        lifespan=lifespan,
    )


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with answer:
        async for piece in answer.content.iter_any():
            yield piece


if __name__ == "__main__":
    uvicorn.run(
        app(sys.argv[2:]),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="error",
    )
