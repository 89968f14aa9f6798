"""GET /v1/ws over the TLS listener (wss): the same frames, and the rules of cookies and origins."""

import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest
import pytest_asyncio
from websockets.exceptions import InvalidStatus

from tests.integration.gateway_world import KEY, World
from tests.integration.session_world import COOKIE, session_world
from tests.integration.test_gateway_tls import HOST, Files, listening
from tests.integration.ws_world import socket


class Secure(NamedTuple):
    """A gateway with a TLS listener at `url`."""

    world: World
    files: Files
    url: str

    @property
    def options(self) -> dict[str, object]:
        return {"url": self.url, "ssl": self.files.trust(), "server_hostname": HOST}


@pytest_asyncio.fixture
async def secure(tmp_path: Path) -> AsyncIterator[Secure]:
    folder = tmp_path / "certificates"
    folder.mkdir()
    files = Files(folder)
    files.show("one")
    async with (
        session_world(tmp_path, **files.settings()) as world,
        listening(world) as (_, port),
    ):
        yield Secure(world, files, f"https://127.0.0.1:{port}")


async def test_a_client_follows_jobs_over_tls_as_without(secure: Secure) -> None:
    await secure.world.writers.begin_term()
    async with socket(secure.world, **secure.options) as client:
        await client.subscribe("a", "jobs")
        await client.until("ready")
        job_id = (await secure.world.submit())["id"]
        [*_, frame] = await client.until("job")
        assert frame["data"]["id"] == job_id
        secure.files.show("two")  # a new certificate reaches later connections only
        again = (await secure.world.submit())["id"]
        [*_, frame] = await client.until("job")
        assert frame["data"]["id"] == again


async def test_a_gateway_of_another_authority_is_not_spoken_to(secure: Secure) -> None:
    options = {**secure.options, "ssl": ssl.create_default_context()}
    with pytest.raises(ssl.SSLCertVerificationError):
        async with socket(secure.world, **options):
            pass


async def test_over_tls_a_browser_s_socket_needs_the_host_s_cookie_and_a_page_over_tls(
    secure: Secure,
) -> None:
    async with aiohttp.ClientSession() as session:
        answer = await session.post(
            f"{secure.url}/v1/session",
            json={"key": KEY},
            headers={"origin": secure.url},
            ssl=secure.files.trust(),
            server_hostname=HOST,
        )
        cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"__Host-{COOKIE}=") and cookie.endswith("; Secure")
    token = cookie.split(";")[0].partition("=")[2]

    def as_page(name: str, origin: str) -> dict[str, object]:
        return {
            **secure.options,
            "additional_headers": {"cookie": f"{name}={token}"},
            "origin": origin,
        }

    own = as_page(f"__Host-{COOKIE}", secure.url)
    async with socket(secure.world, key=None, **own) as client:
        await client.subscribe("a", "jobs")
        await client.until("ready")
    for origin in (secure.url.replace("https", "http"), "https://evil.example.org"):
        with pytest.raises(InvalidStatus) as refused:
            async with socket(secure.world, key=None, **as_page(f"__Host-{COOKIE}", origin)):
                pass
        assert refused.value.response.status_code == 403, origin
    # Another host may have set a cookie without the prefix, so it is no key.
    async with socket(secure.world, key=None, **as_page(COOKIE, secure.url)) as client:
        await client.subscribe("a", "jobs")
        code, reason = await client.closed()
        assert code == 1008 and "key" in reason
