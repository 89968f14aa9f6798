"""A gateway whose users sign in at a provider in another process."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import aiohttp

from tests.integration.gateway_world import World
from tests.integration.oidc_provider import CLIENT, SECRET
from tests.integration.session_world import Answer, Browser, browser_at, session_world

GROUPS = """
- {group: gpu-admins, tenant: default, role: admin}
- {group: physics, tenant: physics, role: member}
- {group: astronomy, tenant: nowhere, role: member}
"""
ADA = {"email": "ada@example.org", "email_verified": True, "groups": ["staff", "physics"]}
SIGN_ON = "muster_sign_on"


class Provider:
    """The provider's process, and what the test tells it."""

    def __init__(self) -> None:
        self.issuer = ""
        self.process: asyncio.subprocess.Process | None = None

    async def start(self, port: int = 0) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.integration.oidc_provider", str(port)),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self.process.stdout is not None
        self.issuer = (await self.process.stdout.readline()).decode().strip()
        await self.tell(claims=ADA)

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def tell(self, **told: Any) -> dict[str, int]:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.issuer}/control", json=told) as answer,
        ):
            found: dict[str, int] = await answer.json()
            return found


class Lab(NamedTuple):
    """The gateway, the provider, a browser, and the file of groups."""

    world: World
    provider: Provider
    browser: Browser
    groups: Path

    async def begin(self, path: str = "/jobs") -> tuple[str, str]:
        """Begin a sign-on; return the provider's address and the browser's record of it."""
        answer = await self.browser.ask("GET", f"/v1/session/oidc?next={path}")
        assert answer.status == 303, answer
        return answer.headers["location"], cookie_in(answer, SIGN_ON)

    async def back(self, address: str) -> str:
        """Sign in at the provider; return the path and query with which it sends back."""
        async with self.browser.session.get(address, allow_redirects=False) as response:
            parts = urlsplit(response.headers["location"])
        assert f"{parts.scheme}://{parts.netloc}" == self.world.url
        return f"{parts.path}?{parts.query}"

    async def finish(self, path: str, record: str) -> Answer:
        return await self.browser.ask(
            "GET", path, headers={"cookie": f"{SIGN_ON}={record}"} if record else {}
        )

    async def sign_on(self, path: str = "/jobs") -> Answer:
        address, record = await self.begin(path)
        return await self.finish(await self.back(address), record)


def cookie_in(answer: Answer, name: str) -> str:
    """Return the value of a cookie that an answer sets."""
    texts = answer.headers.getall("set-cookie", [])  # type: ignore[attr-defined]
    return next(
        (text.split(";")[0].split("=", 1)[1] for text in texts if text.startswith(name)), ""
    )


def state_in(address: str) -> str:
    return parse_qs(urlsplit(address).query)["state"][0]


@asynccontextmanager
async def lab(tmp_path: Path, **changed: Any) -> AsyncIterator[Lab]:
    provider, groups, secret = Provider(), tmp_path / "groups.yaml", tmp_path / "secret"
    groups.write_text(GROUPS)
    secret.write_text(SECRET + "\n")
    await provider.start()
    settings = {
        "oidc_issuer": provider.issuer,
        "oidc_client_id": CLIENT,
        "oidc_client_secret_file": str(secret),
        "oidc_groups_file": str(groups),
        **changed,
    }
    try:
        async with session_world(tmp_path, **settings) as world, browser_at(world) as browser:
            await world.ask("PUT", "/v1/tenants/physics", 201)
            yield Lab(world, provider, browser, groups)
    finally:
        await provider.stop()
