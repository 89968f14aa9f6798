"""Sign in at a real provider process: pages by code with PKCE, the command line by device code; the
mapping of groups decides tenant and role, also of sessions that exist.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common.messages import access_entry
from tests.integration.gateway_world import KEY
from tests.integration.session_world import browser_at
from tests.integration.sign_on_world import ADA, SIGN_ON, Lab, lab
from tests.integration.test_cli_identity import Shell


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Lab]:
    async with lab(tmp_path) as found:
        yield found


async def test_a_user_signs_in_and_has_the_tenant_and_role_of_the_group(at: Lab) -> None:
    assert (await at.browser.ask("GET", "/v1/session")).body["oidc"] is True
    answer = await at.sign_on("/jobs?state=running")
    assert (answer.status, answer.headers["location"]) == (303, "/jobs?state=running")
    shown = (await at.browser.ask("GET", "/v1/session")).body
    principal = shown["principal"]
    assert (principal["user"], principal["tenant"], principal["role"]) == (
        "ada@example.org",
        "physics",
        "member",
    )
    assert principal["key_id"].startswith("sso-") and shown["expires_at"]
    job = await at.browser.ask("POST", "/v1/jobs", json={"command": ["true"]})
    assert job.status == 201 and job.body["tenant"] == "physics"
    assert (await at.browser.ask("PUT", "/v1/tenants/x")).status == 403


async def test_the_first_rule_that_fits_decides(at: Lab) -> None:
    await at.provider.tell(claims={**ADA, "groups": ["physics", "gpu-admins"]})
    await at.sign_on()
    assert (await at.browser.ask("GET", "/v1/session")).body["principal"]["role"] == "admin"


async def test_groups_may_come_from_the_user_information(at: Lab) -> None:
    claims = {"email": "ada@example.org", "userinfo": {"groups": "physics"}}
    await at.provider.tell(claims=claims)
    assert (await at.sign_on()).status == 303
    assert (await at.browser.ask("GET", "/v1/session")).body["principal"]["tenant"] == "physics"


async def test_groups_may_stand_in_an_object(tmp_path: Path) -> None:
    async with lab(tmp_path, oidc_groups_claim="realm_access.roles") as at:
        await at.provider.tell(claims={**ADA, "realm_access": {"roles": ["gpu-admins"]}})
        await at.sign_on()
        assert (await at.browser.ask("GET", "/v1/session")).body["principal"]["role"] == "admin"


async def test_a_user_without_an_admitted_group_is_told_so(at: Lab) -> None:
    await at.provider.tell(claims={**ADA, "groups": ["staff"]})
    answer = await at.sign_on()
    assert answer.status == 403 and "is in none of the groups" in answer.body["detail"]
    await at.provider.tell(claims={**ADA, "groups": ["astronomy"]})
    answer = await at.sign_on()
    assert answer.status == 403 and "the tenant nowhere" in answer.body["detail"]
    assert at.browser.token == ""


async def test_a_changed_mapping_changes_sessions_that_exist(at: Lab) -> None:
    await at.sign_on()
    at.groups.write_text("- {group: physics, tenant: physics, role: viewer}\n")
    at.world.gateway.sign_on.groups.refresh()
    assert (await at.browser.ask("GET", "/v1/session")).body["principal"]["role"] == "viewer"
    at.groups.write_text("[]\n")
    at.world.gateway.sign_on.groups.refresh()
    assert (await at.browser.ask("GET", "/v1/jobs")).status == 401


async def test_a_session_ends_with_its_tenant(at: Lab) -> None:
    await at.sign_on()
    await at.world.ask("DELETE", "/v1/tenants/physics", 204)
    assert (await at.browser.ask("GET", "/v1/jobs")).status == 401


async def test_a_link_of_a_signed_in_user_is_the_same_user(at: Lab) -> None:
    await at.sign_on()
    link = (await at.browser.ask("POST", "/v1/session/links")).body["path"]
    async with browser_at(at.world) as other:
        answer = await other.sign_in(link=link.removeprefix("/#link="))
        assert answer.body["principal"]["user"] == "ada@example.org"


async def test_sign_ons_are_recorded_with_their_user(at: Lab) -> None:
    await at.sign_on()
    found = access_entry.unpack(access_entry.pack(at.world.gateway.access.waiting))
    assert [(entry.user, entry.route, entry.status) for entry in found][-2:] == [
        ("", "/v1/session/oidc", 303),
        ("ada@example.org", "/v1/session/oidc/callback", 303),
    ]


async def test_new_keys_of_the_provider_are_read(at: Lab) -> None:
    await at.sign_on()
    await at.provider.tell(rotate=True)
    at.world.gateway.sign_on.provider._keys_ns -= 20_000_000_000  # they were read a while ago
    assert (await at.sign_on()).status == 303


async def test_while_the_provider_is_down_keys_work_and_the_error_says_so(at: Lab) -> None:
    address, record = await at.begin()
    back = await at.back(address)
    await at.provider.stop()
    answer = await at.finish(back, record)
    assert answer.status == 503 and "sign in with an API key" in answer.body["detail"]
    assert (await at.browser.ask("POST", "/v1/session/device")).status == 503
    assert (await at.browser.sign_in(key=KEY)).status == 200
    assert (await at.browser.ask("GET", "/v1/jobs")).status == 200


async def test_a_provider_of_another_issuer_is_not_used(at: Lab) -> None:
    await at.provider.tell(claims=ADA, lies={"issuer": "https://evil.example.org"})
    answer = await at.browser.ask("GET", "/v1/session/oidc")
    assert answer.status == 503 and "does not describe this issuer" in answer.body["detail"]


async def test_a_provider_without_tls_elsewhere_is_not_used(tmp_path: Path) -> None:
    async with lab(tmp_path, oidc_issuer="http://id.example.org") as at:
        answer = await at.browser.ask("GET", "/v1/session/oidc")
        assert answer.status == 503 and "is not an https address" in answer.body["detail"]


async def test_behind_a_proxy_the_provider_sends_back_to_the_set_address(tmp_path: Path) -> None:
    async with lab(tmp_path, gateway_url="https://gpus.example.org/") as at:
        answer = await at.browser.ask("GET", "/v1/session/oidc")
        back = "redirect_uri=https%3A%2F%2Fgpus.example.org%2Fv1%2Fsession%2Foidc%2Fcallback"
        assert back in answer.headers["location"]
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith(f"__Host-{SIGN_ON}=") and "; Path=/;" in cookie
        assert cookie.endswith("SameSite=Lax; Secure")


async def test_a_command_line_signs_in_with_a_device_code(at: Lab) -> None:
    begun = (await at.browser.ask("POST", "/v1/session/device")).body
    assert (begun["user_code"], begun["interval_s"], begun["expires_s"]) == ("WDJB-MJHT", 1, 300)
    ask = {"json": {"device": begun["device"]}}
    waiting = await at.browser.ask("POST", "/v1/session/device/token", **ask)
    assert (waiting.status, waiting.body["token"]) == (202, "")
    await at.provider.tell(device="entered")
    done = await at.browser.ask("POST", "/v1/session/device/token", **ask)
    assert done.status == 200 and done.body["principal"]["tenant"] == "physics"
    bearer = {"authorization": f"Bearer {done.body['token']}"}
    assert (await at.world.ask("GET", "/v1/whoami", headers=bearer))["user"] == "ada@example.org"
    again = await at.browser.ask("POST", "/v1/session/device/token", **ask)
    assert again.status == 401 and "expired_token" in again.body["detail"]


@pytest.mark.parametrize("state", ["access_denied", "expired_token"])
async def test_a_device_code_that_is_refused_or_expires_signs_nobody_in(
    at: Lab, state: str
) -> None:
    begun = (await at.browser.ask("POST", "/v1/session/device")).body
    await at.provider.tell(device=state)
    body = {"device": begun["device"]}
    answer = await at.browser.ask("POST", "/v1/session/device/token", json=body)
    assert answer.status == 401 and state in answer.body["detail"]


async def test_muster_login_sso_stores_a_session(at: Lab, tmp_path: Path) -> None:
    shell = Shell(tmp_path, at.world.url)
    running = asyncio.create_task(shell.run("login", at.world.url, "--sso"))
    while not at.world.gateway.sign_on.begun.used:
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    await at.provider.tell(device="entered")
    stdout, _ = await running
    assert "WDJB-MJHT" in stdout and "ada@example.org of tenant physics, member" in stdout
    kept = json.loads(shell.profile.read_text())
    assert kept["key"].startswith("mss_") and kept["user"] == "ada@example.org"
    assert "ada@example.org" in (await shell.run("whoami"))[0]


async def test_without_a_provider_the_routes_say_so(tmp_path: Path) -> None:
    async with lab(tmp_path, oidc_issuer="") as at:
        for method, path in (("GET", "/v1/session/oidc"), ("POST", "/v1/session/device")):
            answer = await at.browser.ask(method, path)
            assert answer.status == 404 and "MUSTER_OIDC_ISSUER" in answer.body["detail"]
