"""Sign in from a browser, over real HTTP: by key and by one-time link, at any gateway, until the
key is revoked, the session expires, or the user signs out.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from libs.common.messages import access_entry
from libs.common.transport.log_memory import MemoryStream
from libs.common.transport.once import MemoryOnce
from services.api_gateway.access.sessions import LINKS_MAX
from tests.integration.gateway_world import KEY, World, gateway_world
from tests.integration.session_world import COOKIE, Browser, browser_at, session_world
from tests.integration.test_cli_identity import Shell


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with session_world(tmp_path) as found:
        yield found


@pytest.fixture
async def browser(world: World) -> AsyncIterator[Browser]:
    async with browser_at(world) as found:
        yield found


async def code_of(world: World) -> str:
    link = await world.ask("POST", "/v1/session/links", 201)
    assert link["expires_s"] == 60
    path: str = link["path"]
    assert path.startswith("/#link=")
    return path.removeprefix("/#link=")


async def test_a_browser_is_signed_out_until_it_signs_in_with_a_key(browser: Browser) -> None:
    assert (await browser.ask("GET", "/v1/session")).body == {
        "signed_in": False,
        "principal": None,
        "oidc": False,
        "expires_at": None,
    }
    assert (await browser.ask("GET", "/v1/jobs")).status == 401
    answer = await browser.sign_in()
    assert answer.status == 200 and answer.body["principal"]["user"] == "tests"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly; SameSite=Strict" in cookie and "Path=/;" in cookie and "Secure" not in cookie
    assert answer.headers["cache-control"] == "no-store"
    assert KEY not in browser.token
    shown = (await browser.ask("GET", "/v1/session")).body
    assert shown["signed_in"] and shown == answer.body
    assert (await browser.ask("GET", "/v1/jobs")).status == 200
    assert (await browser.ask("POST", "/v1/jobs", json={"command": ["true"]})).status == 201


async def test_signing_out_removes_the_cookie(browser: Browser) -> None:
    await browser.sign_in()
    answer = await browser.ask("DELETE", "/v1/session")
    assert answer.status == 204 and "Max-Age=0" in answer.headers["set-cookie"]
    assert (browser.token, (await browser.ask("GET", "/v1/jobs")).status) == ("", 401)


async def test_the_token_of_a_session_is_accepted_as_bearer(browser: Browser) -> None:
    await browser.sign_in()
    bearer = {"authorization": f"Bearer {browser.token}", "cookie": ""}
    assert (await browser.ask("GET", "/v1/whoami", headers=bearer)).status == 200
    answer = await browser.ask("POST", "/v1/jobs", None, headers=bearer, json={"command": ["true"]})
    assert answer.status == 201


async def test_over_tls_or_behind_a_tls_proxy_the_cookie_is_secure(browser: Browser) -> None:
    host = browser.url.removeprefix("http://")
    answer = await browser.ask("POST", "/v1/session", f"https://{host}", json={"key": KEY})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"__Host-{COOKIE}=") and cookie.endswith("; Secure")
    assert "; Path=/;" in cookie and "Domain" not in cookie
    token = cookie.split(";")[0].partition("=")[2]
    accepted = {"cookie": f"__Host-{COOKIE}={token}"}
    assert (await browser.ask("GET", "/v1/jobs", headers=accepted)).status == 200
    gone = await browser.ask("DELETE", "/v1/session", f"https://{host}", headers=accepted)
    assert gone.headers["set-cookie"].startswith(f"__Host-{COOKIE}=; Path=/; Max-Age=0")


async def test_over_tls_a_cookie_that_another_host_may_have_set_is_not_accepted(
    tmp_path: Path,
) -> None:
    settings = {"gateway_url": "https://gpus.example.org"}
    async with session_world(tmp_path, **settings) as world, browser_at(world) as browser:
        host = {"host": "gpus.example.org"}
        asked = {"json": {"key": KEY}, "headers": host}
        answer = await browser.ask("POST", "/v1/session", "https://gpus.example.org", **asked)
        token = answer.headers["set-cookie"].split(";")[0].partition("=")[2]
        for name, status in ((f"__Host-{COOKIE}", 200), (COOKIE, 401)):
            headers = {**host, "cookie": f"{name}={token}"}
            assert (await browser.ask("GET", "/v1/jobs", headers=headers)).status == status


async def test_without_tls_the_cookie_is_not_secure_whatever_the_set_address(
    tmp_path: Path,
) -> None:
    """A browser would not store it otherwise."""
    settings = {"gateway_url": "https://gpus.example.org"}
    async with session_world(tmp_path, **settings) as world, browser_at(world) as browser:
        assert "Secure" not in (await browser.sign_in()).headers["set-cookie"]


async def test_a_link_signs_in_once_and_shows_no_key(world: World, browser: Browser) -> None:
    async with world.as_("member", "ada") as ada:
        code = await code_of(ada)
    assert (await browser.sign_in(link=code)).body["principal"]["user"] == "ada"
    again = await browser.sign_in(link=code)
    assert again.status == 401 and "was used already" in again.body["detail"]


async def test_a_link_is_no_session_and_a_session_is_no_link(
    world: World, browser: Browser
) -> None:
    code = await code_of(world)
    await browser.sign_in()
    assert (await browser.sign_in(link=browser.token)).status == 401
    bearer = {"authorization": f"Bearer {code}", "cookie": ""}
    assert (await browser.ask("GET", "/v1/whoami", headers=bearer)).status == 401


async def test_a_link_works_once_over_all_gateways(tmp_path: Path) -> None:
    stream, once = MemoryStream(), MemoryOnce()
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(
                session_world(tmp_path, stream=stream, once=once, instance=name)
            )
            for name in "ab"
        ]
        browser = await stack.enter_async_context(browser_at(second))
        code = await code_of(first)
        assert (await browser.sign_in(link=code)).status == 200
        other = await stack.enter_async_context(browser_at(first))
        assert (await other.sign_in(link=code)).status == 401
        other.token = browser.token
        assert (await other.ask("GET", "/v1/session")).body["signed_in"]


async def test_an_expired_link_and_an_expired_session_are_not_accepted(tmp_path: Path) -> None:
    async with session_world(tmp_path, gateway_session_s=0) as world, browser_at(world) as browser:
        await browser.sign_in()
        assert (await browser.ask("GET", "/v1/jobs")).status == 401
        assert not (await browser.ask("GET", "/v1/session")).body["signed_in"]


def replace_vault_key(world: World) -> None:
    Path(world.gateway.vault.key_file).write_bytes(b64encode(b"n" * 32))


async def test_a_replaced_vault_key_ends_all_sessions_without_a_restart(
    world: World, browser: Browser
) -> None:
    await browser.sign_in()
    assert (await browser.ask("GET", "/v1/jobs")).status == 200
    replace_vault_key(world)
    async with asyncio.timeout(20):
        while (await browser.ask("GET", "/v1/jobs")).status == 200:
            await asyncio.sleep(0.05)
    await browser.sign_in()
    assert (await browser.ask("GET", "/v1/jobs")).status == 200


async def test_revoking_a_key_ends_its_sessions_and_links(world: World, browser: Browser) -> None:
    made = await world.ask("POST", "/v1/keys", 201, json={"user": "ada"})
    key = {"authorization": f"Bearer {made['key']}"}
    link = await world.ask("POST", "/v1/session/links", 201, headers=key)
    await browser.sign_in(key=made["key"])
    assert (await browser.ask("GET", "/v1/jobs")).status == 200
    await world.ask("DELETE", f"/v1/keys/{made['id']}", 204)
    assert (await browser.ask("GET", "/v1/jobs")).status == 401
    answer = await browser.sign_in(link=link["path"].removeprefix("/#link="))
    assert answer.status == 401 and "not accepted any more" in answer.body["detail"]


async def test_a_session_of_a_rotated_key_ends_with_the_old_secret(
    world: World, browser: Browser
) -> None:
    made = await world.ask("POST", "/v1/keys", 201, json={"user": "ada"})
    await browser.sign_in(key=made["key"])
    await world.ask("POST", f"/v1/keys/{made['id']}/rotate", json={"grace": "0"})
    assert (await browser.ask("GET", "/v1/jobs")).status == 401


async def test_a_session_ends_no_later_than_its_key(world: World, browser: Browser) -> None:
    made = await world.ask("POST", "/v1/keys", 201, json={"user": "ada", "expires_in": "1h"})
    answer = await browser.sign_in(key=made["key"])
    assert answer.body["expires_at"] == made["expires_at"]
    bearer = {"authorization": f"Bearer {made['key']}"}
    shown = await world.ask("GET", "/v1/session", headers=bearer)
    assert shown["expires_at"] == made["expires_at"]


async def test_a_session_signs_in_again_but_not_for_longer(browser: Browser) -> None:
    first = await browser.sign_in()
    again = await browser.sign_in(key=browser.token)
    assert again.body["expires_at"] == first.body["expires_at"]
    link = await browser.ask("POST", "/v1/session/links")
    linked = await browser.sign_in(link=link.body["path"].removeprefix("/#link="))
    assert linked.body["expires_at"] == first.body["expires_at"]


@pytest.mark.parametrize(
    "body", [{}, {"key": ""}, {"key": 5}, {"key": "a", "link": "b"}, [], {"kez": "x"}]
)
async def test_a_body_that_is_neither_key_nor_link_is_refused(
    browser: Browser, body: object
) -> None:
    answer = await browser.ask("POST", "/v1/session", json=body)
    assert answer.status == 422 and browser.token == ""


async def test_a_stranger_sends_no_large_body(browser: Browser) -> None:
    answer = await browser.sign_in(key="x" * 20_000)
    assert answer.status == 413 and "16384 bytes" in answer.body["detail"]


async def test_the_number_of_links_in_a_minute_is_bounded(world: World) -> None:
    statuses = []
    for _ in range(LINKS_MAX + 1):
        async with world.session.post(world.url + "/v1/session/links") as response:
            statuses.append(response.status)
    # A new minute may begin meanwhile.
    assert statuses[:LINKS_MAX] == [201] * LINKS_MAX and statuses[-1] in (429, 201)


async def test_a_gateway_without_a_key_for_sessions_names_the_setting(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, browser_at(world) as browser:
        answer = await browser.sign_in()
        assert answer.status == 422 and "MUSTER_VAULT_KEY_FILE" in answer.body["detail"]
        assert not (await browser.ask("GET", "/v1/session")).body["signed_in"]
        assert (await browser.sign_in(link="mss_x")).status == 401


async def test_sign_ins_are_recorded_with_their_user_and_failed_ones_as_denied(
    tmp_path: Path,
) -> None:
    async with session_world(tmp_path) as world, browser_at(world) as browser:
        await browser.sign_in()
        token, browser.token = browser.token, ""
        await browser.sign_in(key="guess")
        found = list(access_entry.unpack(access_entry.pack(world.gateway.access.waiting)))
        assert [(entry.user, entry.status, bool(entry.denied)) for entry in found] == [
            ("tests", 200, False),
            ("", 401, True),
        ]
        text = json.dumps([str(entry) for entry in found])
        assert KEY not in text and token not in text and "guess" not in text


async def test_muster_dashboard_prints_a_link_that_signs_in(tmp_path: Path) -> None:
    async with session_world(tmp_path) as world, browser_at(world) as browser:
        shell = Shell(tmp_path, world.url)
        stdout, _ = await shell.run("dashboard", MUSTER_URL=world.url, MUSTER_API_KEY=KEY)
        address, _, code = stdout.strip().partition("/#link=")
        assert address == world.url
        assert (await browser.sign_in(link=code)).body["principal"]["user"] == "tests"
