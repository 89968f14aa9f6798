"""A small registry of images on loopback, with or without a password. It serves what Docker pulls.

An engine speaks plain HTTP to registries on 127.0.0.0/8.
"""

import asyncio
import base64
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any, Final

from aiohttp import web

MANIFEST: Final = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG: Final = "application/vnd.docker.container.image.v1+json"
LAYER: Final = "application/vnd.docker.image.rootfs.diff.tar.gzip"
PIECE_BYTES: Final = 256 << 10


def digest_of(data: bytes) -> str:
    return f"sha256:{sha256(data).hexdigest()}"


class Registry:
    """The images of one registry: `password` empty lets everyone pull.

    `pause_s` is the time between two pieces of a layer. `asked` are the requests as they came.
    """

    def __init__(self) -> None:
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.password = ""
        self.pause_s = 0.0
        self.port = 0
        self.asked: list[str] = []

    def add(self, name: str, files: bytes, **config: Any) -> str:
        """Add an image of one layer as NAME:TAG; return its digest."""
        layer = gzip.compress(files, mtime=0, compresslevel=1)
        described = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": config,
                "rootfs": {"type": "layers", "diff_ids": [digest_of(files)]},
            }
        ).encode()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": self._blob(described, CONFIG),
                "layers": [self._blob(layer, LAYER)],
            }
        ).encode()
        repo, _, tag = name.rpartition(":")
        for reference in (tag, digest_of(manifest)):
            self.manifests[f"{repo}/{reference}"] = manifest
        return digest_of(manifest)

    def named(self, name: str) -> str:
        return f"127.0.0.1:{self.port}/{name}"

    def _blob(self, data: bytes, kind: str) -> dict[str, object]:
        self.blobs[digest_of(data)] = data
        return {"mediaType": kind, "size": len(data), "digest": digest_of(data)}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        given = base64.b64encode(f"ann:{self.password}".encode()).decode()
        if self.password and request.headers.get("Authorization") != f"Basic {given}":
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="test"'})
        if request.path == "/v2/":
            return web.json_response({})
        path = request.path.removeprefix("/v2/")
        repo, kind, reference = path.rsplit("/", 2)
        if kind == "manifests" and (found := self.manifests.get(f"{repo}/{reference}")):
            headers = {"Docker-Content-Digest": digest_of(found)}
            return web.Response(body=found, content_type=MANIFEST, headers=headers)
        if kind == "blobs" and (blob := self.blobs.get(reference)) is not None:
            return await self._streamed(request, blob)
        return web.json_response({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, status=404)

    async def _streamed(self, request: web.Request, data: bytes) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": str(len(data))})
        await answer.prepare(request)
        for begin in range(0, len(data), PIECE_BYTES):
            await answer.write(data[begin : begin + PIECE_BYTES])
            await asyncio.sleep(self.pause_s)
        return answer


@asynccontextmanager
async def registry() -> AsyncIterator[Registry]:
    made = Registry()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.port = runner.addresses[0][1]
    try:
        yield made
    finally:
        await runner.cleanup()
