"""A small real hub over HTTP, and the packed program of a pull as a child process."""

import asyncio
import contextlib
import hashlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from aiohttp import web

from services.node_agent.pulled.program import packed

COMMIT = "c" * 40
PATIENCE_S = 60.0
REPOSITORY = "Team/Tiny-1B"

Answer = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


class Hub:
    """The files of one repository. `large` have a SHA-256, others a git hash.

    `entries` replaces the list of files. `before` may answer in place of the hub.
    """

    def __init__(self) -> None:
        self.commit, self.token, self.url = COMMIT, "", ""
        self.files: dict[str, bytes] = {}
        self.large: set[str] = set()
        self.entries: Any = None
        self.page = 1_000
        self.before: Answer | None = None
        self.seen: list[web.Request] = []
        self.sent_bytes = 0

    def holds(self, path: str, data: bytes, large: bool = False) -> None:
        self.files[path] = data
        if large:
            self.large.add(path)

    def paths(self) -> list[str]:
        """Return the paths that were asked for, without those of the API."""
        return [
            each.path.partition("/resolve/")[2] for each in self.seen if "/resolve" in each.path
        ]

    def listed(self) -> list[Any]:
        if self.entries is not None:
            return list(self.entries)
        return [self._entry(path, data) for path, data in self.files.items()]

    def _entry(self, path: str, data: bytes) -> dict[str, Any]:
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        found: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": blob}
        if path in self.large:
            found["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
        return found

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request)
        if self.before is not None and (found := await self.before(request)) is not None:
            return found
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.Response(status=401, text="<html>log in</html>", content_type="text/html")
        path = request.path
        if "/revision/" in path:
            if path.rpartition("/")[2] not in ("main", self.commit):
                return web.json_response({"error": "no revision"}, status=404)
            return web.json_response({"sha": self.commit, "siblings": []})
        if "/tree/" in path:
            return self._tree(request)
        name = unquote(path.partition(f"/resolve/{self.commit}/")[2])
        if name not in self.files:
            return web.Response(status=404)
        return self.body(request, self.files[name])

    def _tree(self, request: web.Request) -> web.Response:
        first = int(request.query.get("cursor", "0"))
        rows = self.listed()
        answer = web.json_response(rows[first : first + self.page])
        if first + self.page < len(rows):
            following = request.url.update_query(cursor=first + self.page)
            answer.headers["Link"] = f'<{following}>; rel="next"'
        return answer

    def body(self, request: web.Request, data: bytes) -> web.Response:
        wanted = request.headers.get("Range", "")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.sent_bytes += len(data) - start
        answer = web.Response(status=206 if start else 200, body=data[start:])
        if start:
            answer.headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return answer


@contextlib.asynccontextmanager
async def hub() -> AsyncIterator[Hub]:
    made = Hub()
    app = web.Application(client_max_size=1 << 20)
    app.router.add_route("*", "/{path:.*}", made.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


class Node:
    """The folders of a tenant, and pulls into them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.copies, self.uses = folder / "copies", folder / "uses"
        for path in (self.copies, self.uses):
            path.mkdir()
        self.bound = 0

    async def start(self, url: str, *words: str, **env: str) -> asyncio.subprocess.Process:
        given = {
            "PATH": os.environ["PATH"],
            "MUSTER_PULL_FOLDER": str(self.copies),
            "MUSTER_PULL_USES": str(self.uses),
            "MUSTER_PULL_BYTES": str(self.bound),
            "MUSTER_HUB": url,
            "MUSTER_JOB_ID": "job-1",
            "MUSTER_ATTEMPT": "1",
            **env,
        }
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", str(packed(self.folder)), *words),
            env=given,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def pull(self, url: str, *words: str, code: int = 0, **env: str) -> str:
        """Run a pull to its end and return its output."""
        process = await self.start(url, *(words or (REPOSITORY,)), **env)
        try:
            out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL)
        assert process.returncode == code, out.decode()
        return out.decode()

    def place(self, commit: str = COMMIT) -> Path:
        return self.copies / REPOSITORY.replace("/", "--") / commit

    def is_published(self, commit: str = COMMIT) -> bool:
        return self.place().with_name(f"{commit}.json").exists()

    def files(self, commit: str = COMMIT) -> dict[str, bytes]:
        place = self.place(commit)
        return {
            str(path.relative_to(place)): path.read_bytes()
            for path in place.rglob("*")
            if path.is_file() and path.name != ".muster.json"
        }
