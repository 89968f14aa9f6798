"""A small container engine on a Unix socket, with images and a registry of its own.

It serves the requests of `runtimes/engine.py` about images, as Docker does, and has no containers.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web

from services.node_agent.runtimes.engine import Engine

SIZE = 100
Hook = Callable[[], Awaitable[None]]


@dataclass
class Held:
    """One image of the engine."""

    tags: list[str] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)


class FakeEngine:
    """The engine's images by id.

    `registry` are the ids by name, `private` the names that need credentials. A hook of `before`
    runs before a request with that beginning, such as "DELETE /images/a:1"; `after` likewise.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.images: dict[str, Held] = {}
        self.registry: dict[str, str] = {}
        self.private: set[str] = set()
        self.before: dict[str, Hook] = {}
        self.after: dict[str, Hook] = {}
        self.heard: list[str] = []

    @property
    def client(self) -> Engine:
        return Engine(str(self.path))

    def add(self, name: str) -> str:
        """Add an image to the registry and return its id."""
        self.registry[name] = f"sha256:{name.replace(':', '-').replace('/', '-')}"
        return self.registry[name]

    def found(self, name: str) -> str | None:
        """Return the id of an image that is here."""
        for image_id, held in self.images.items():
            if name == image_id or name in held.tags or name in held.digests:
                return image_id
        return None

    async def serve(self, request: web.Request) -> web.Response:
        line = f"{request.method} {request.path}"
        self.heard.append(line)
        await self._run(self.before, line)
        answer = self._answer(request)
        await self._run(self.after, line)
        return answer

    async def _run(self, hooks: dict[str, Hook], line: str) -> None:
        for start, hook in hooks.items():
            if line.startswith(start):
                await hook()

    def _answer(self, request: web.Request) -> web.Response:
        if request.path == "/images/create":
            return self._pull(request)
        if request.path == "/containers/json":
            return web.json_response([])
        name = request.path.removeprefix("/images/").removesuffix("/json")
        image_id = self.found(name)
        if image_id is None:
            return web.json_response({"message": "no such image"}, status=404)
        held = self.images[image_id]
        if request.method == "GET":
            return web.json_response(
                {"Id": image_id, "RepoTags": held.tags, "RepoDigests": held.digests, "Size": SIZE}
            )
        held.tags = [tag for tag in held.tags if tag != name]
        if not held.tags or name == image_id:
            del self.images[image_id]
        return web.json_response([])

    def _pull(self, request: web.Request) -> web.Response:
        name = request.query["fromImage"]
        may = name not in self.private or "X-Registry-Auth" in request.headers
        if name not in self.registry or not may:
            return web.json_response({"message": "denied"}, status=404)
        repository, _, tag = name.rpartition(":")
        held = self.images.setdefault(self.registry[name], Held())
        held.tags = sorted({*held.tags, name})
        held.digests = [f"{repository}@sha256:{tag}"]
        return web.Response(text=json.dumps({"status": "Pull complete"}) + "\n")


@asynccontextmanager
async def fake_engine(folder: Path) -> AsyncIterator[FakeEngine]:
    """Serve an engine without images."""
    made = FakeEngine(folder / "engine.sock")
    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", made.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.UnixSite(runner, str(made.path)).start()
    try:
        yield made
    finally:
        await runner.cleanup()


def stopped_at(event: asyncio.Event) -> Hook:
    """Return a hook that sets the event and then never ends."""

    async def hook() -> None:
        event.set()
        await asyncio.Event().wait()

    return hook
