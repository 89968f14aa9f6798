"""A browser without a key, at a gateway that has a key for sessions."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from libs.embedded.identity import vault_key_file
from tests.integration.gateway_world import KEY, World, gateway_world

COOKIE = "muster_session"


class Answer(NamedTuple):
    """One answer as a browser sees it."""

    status: int
    body: Any
    headers: Mapping[str, str]


class Browser:
    """Keeps the session's cookie and sends it with the Origin of its page, as browsers do."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self.session = session
        self.token = ""

    async def ask(self, method: str, path: str, origin: str | None = "", **options: Any) -> Answer:
        """Ask. `origin`: empty for the gateway's own page, None for none."""
        headers = dict(options.pop("headers", {}))
        if origin is not None and method != "GET":
            headers.setdefault("origin", origin or self.url)
        if self.token:
            headers.setdefault("cookie", f"theme=dark; {COOKIE}={self.token}")
        async with self.session.request(
            method, self.url + path, headers=headers, allow_redirects=False, **options
        ) as response:
            if COOKIE in response.cookies:
                self.token = response.cookies[COOKIE].value
            text = await response.read()
            is_json = "json" in response.headers.get("content-type", "")
            body = await response.json(content_type=None) if is_json and text else text
            return Answer(response.status, body, response.headers)

    async def sign_in(self, **body: str) -> Answer:
        return await self.ask("POST", "/v1/session", json=body or {"key": KEY})


@asynccontextmanager
async def browser_at(world: World) -> AsyncIterator[Browser]:
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session:
        yield Browser(world.url, session)


@asynccontextmanager
async def session_world(tmp_path: Path, **changed: Any) -> AsyncIterator[World]:
    """A gateway with a key for sessions."""
    vault = str(vault_key_file(tmp_path))
    async with gateway_world(tmp_path, vault_key_file=vault, **changed) as world:
        yield world
