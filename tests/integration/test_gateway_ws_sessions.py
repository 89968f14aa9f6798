"""GET /v1/ws with a session: a page of this gateway may use its cookie, a foreign page may not, and
the connection ends with the key of the session.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from services.api_gateway.openai.catalogue import Listed
from tests.integration.gateway_world import World
from tests.integration.openai_replica import running
from tests.integration.openai_world import MESSAGES, served
from tests.integration.session_world import COOKIE, Browser, browser_at, session_world
from tests.integration.ws_world import Socket, key_of


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with session_world(tmp_path, keepalive_ms=200) as made:
        yield made


def opened(browser: Browser, origin: str | None) -> connect:
    headers = {"cookie": f"theme=dark; {COOKIE}={browser.token}"}
    if origin is not None:
        headers["origin"] = origin
    url = browser.url.replace("http", "ws", 1) + "/v1/ws"
    return connect(url, additional_headers=headers, close_timeout=1)


async def test_a_page_of_this_gateway_uses_its_session(world: World) -> None:
    async with browser_at(world) as browser, running() as replica:
        world.gateway.models = Listed(served(replica.port))
        await browser.sign_in()
        async with opened(browser, browser.url) as connection:
            client = Socket(connection)
            await client.subscribe("a", "jobs")
            await client.until("ready")
            body = {"messages": MESSAGES, "x_chunks": 2}
            await client.tell(op="request", id="r", model="m", body=body)
            assert (await client.until("end"))[-1]["data"] == {"status": 200}


@pytest.mark.parametrize("origin", ["http://evil.example", "null", None])
async def test_a_foreign_page_may_not_use_the_session(world: World, origin: str | None) -> None:
    async with browser_at(world) as browser:
        await browser.sign_in()
        with pytest.raises(InvalidStatus) as caught:
            async with opened(browser, origin):
                pass
        assert caught.value.response.status_code == 403


async def test_a_session_ends_its_connections_with_its_key(world: World) -> None:
    key = await key_of(world, "viewer", "ada")
    async with browser_at(world) as browser:
        await browser.sign_in(key=key)
        async with opened(browser, browser.url) as connection:
            client = Socket(connection)
            await client.subscribe("a", "summary")
            await client.next()
            listed = (await world.ask("GET", "/v1/keys"))["keys"]
            key_id = next(each["id"] for each in listed if each["user"] == "ada")
            await world.ask("DELETE", f"/v1/keys/{key_id}", 204)
            code, reason = await client.closed()
            assert code == 1008 and reason.endswith("sign in again")
