"""A page of another site makes a signed-in browser send requests.

The browser adds the session's cookie where it may. The gateway refuses what changes something,
and every WebSocket, unless the request comes from its own page.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.integration.gateway_world import KEY, World
from tests.integration.session_world import COOKIE, Browser, browser_at, session_world

FOREIGN = ["https://evil.example.org", "null", "http://127.0.0.1", "http://127.0.0.1:1", None]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with session_world(tmp_path) as found:
        await found.writers.begin_term()
        await found.writers.register("n1")
        yield found


@pytest.fixture
async def browser(world: World) -> AsyncIterator[Browser]:
    async with browser_at(world) as found:
        await found.sign_in()
        yield found


@pytest.mark.parametrize("origin", FOREIGN)
async def test_a_foreign_page_changes_nothing_with_the_cookie(
    world: World, browser: Browser, origin: str | None
) -> None:
    for method, path in (
        ("POST", "/v1/jobs"),
        ("PUT", "/v1/tenants/evil"),
        ("DELETE", "/v1/nodes/n1"),
        ("POST", "/v1/keys"),
        ("POST", "/v1/session/links"),
        ("POST", "/v1/chat/completions"),
    ):
        answer = await browser.ask(method, path, origin, json={"command": ["true"]})
        assert answer.status == 403, (method, path)
    assert (await world.ask("GET", "/v1/jobs"))["jobs"] == []


@pytest.mark.parametrize("origin", FOREIGN)
async def test_a_foreign_page_opens_no_websocket_with_the_cookie(
    world: World, browser: Browser, origin: str | None
) -> None:
    job = await world.run_to("running")
    headers = {"cookie": f"{COOKIE}={browser.token}"}
    with pytest.raises(aiohttp.WSServerHandshakeError) as error:
        await browser.session.ws_connect(
            f"{world.url}/v1/jobs/{job}/exec", headers=headers, origin=origin
        )
    assert error.value.status == 403
    with pytest.raises(aiohttp.WSServerHandshakeError) as error:  # the own page is let through
        await browser.session.ws_connect(
            f"{world.url}/v1/jobs/{job}/exec", headers=headers, origin=world.url
        )
    assert error.value.status == 422


@pytest.mark.parametrize("origin", FOREIGN[:-1])
async def test_a_foreign_page_signs_nobody_in_or_out(browser: Browser, origin: str) -> None:
    answer = await browser.ask("POST", "/v1/session", origin, json={"key": KEY})
    assert answer.status == 403 and "set-cookie" not in answer.headers
    answer = await browser.ask("DELETE", "/v1/session", origin)
    assert answer.status == 403 and browser.token


async def test_a_second_cookie_of_a_neighbouring_site_is_not_trusted(browser: Browser) -> None:
    twice = {"cookie": f"{COOKIE}=mss_x; {COOKIE}={browser.token}"}
    assert (await browser.ask("GET", "/v1/jobs", headers=twice)).status == 401


async def test_a_key_in_the_header_needs_no_origin(world: World) -> None:
    assert (await world.submit())["state"] == "pending"


async def test_a_wrong_key_in_the_header_does_not_fall_back_to_the_cookie(
    browser: Browser,
) -> None:
    wrong = {"authorization": "Bearer wrong"}
    assert (await browser.ask("GET", "/v1/jobs", headers=wrong)).status == 401


async def test_the_page_of_the_description_has_no_origin_to_act_from(browser: Browser) -> None:
    page = await browser.ask("GET", "/docs")
    assert page.status == 200 and page.headers["content-security-policy"].startswith("sandbox")
    assert "allow-same-origin" not in page.headers["content-security-policy"]
    described = await browser.ask("GET", "/openapi.json")
    assert described.headers["access-control-allow-origin"] == "*" and described.body["paths"]
