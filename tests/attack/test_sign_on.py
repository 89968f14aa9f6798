"""Forged and replayed sign-ons: tokens that the provider did not make for this client and this
sign-on, answers to another browser, and addresses to other sites.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.api_gateway.access.sessions import POLLS_MAX
from services.api_gateway.sign_on.sign_on import COOKIE
from tests.integration.sign_on_world import ADA, Lab, lab, state_in


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Lab]:
    async with lab(tmp_path) as found:
        yield found


@pytest.mark.parametrize(
    "lies",
    [
        {"signed": "none"},
        {"signed": "shared"},
        {"signed": "public key as secret"},
        {"signed": "foreign key"},
        {"signed": "changed"},
        {"claims": {"aud": "another"}},
        {"claims": {"aud": ["muster", "another"]}},
        {"claims": {"aud": ["muster", "another"], "azp": "another"}},
        {"claims": {"azp": "another"}},
        {"claims": {"iss": "https://evil.example.org"}},
        {"claims": {"nonce": "another"}},
        {"claims": {"exp": 1_000_000_000}},
        {"claims": {"exp": "soon"}},
        {"claims": {"iat": 99_999_999_999}},
        {"claims": {"nbf": 99_999_999_999}},
        {"without": ["nonce"]},
        {"without": ["exp"]},
        {"without": ["aud"]},
        {"without": ["iss"]},
        {"without": ["sub"]},
    ],
    ids=str,
)
async def test_a_forged_token_signs_nobody_in(at: Lab, lies: dict[str, Any]) -> None:
    await at.provider.tell(claims=ADA, lies=lies)
    answer = await at.sign_on()
    assert answer.status == 401 and "identity token is not accepted" in answer.body["detail"]
    assert at.browser.token == ""


@pytest.mark.parametrize(
    "claims",
    [
        {**ADA, "email_verified": False},
        {**ADA, "email": "ada example"},
        {**ADA, "email": None},
        {**ADA, "email": ["ada@example.org"]},
        {**ADA, "groups": {"physics": True}},
        {**ADA, "groups": None},
        {**ADA, "groups": "*"},
    ],
    ids=str,
)
async def test_claims_that_name_no_admitted_user_sign_nobody_in(
    at: Lab, claims: dict[str, Any]
) -> None:
    await at.provider.tell(claims=claims)
    assert (await at.sign_on()).status == 403
    assert at.browser.token == ""


async def test_an_answer_for_another_browser_is_not_accepted(at: Lab) -> None:
    """Somebody lures a browser to the answer of a sign-on that they began themselves."""
    address, record = await at.begin()
    back = await at.back(address)
    assert (await at.finish(back, "")).status == 401
    _, other = await at.begin()
    answer = await at.finish(back, other)
    assert answer.status == 401 and answer.body["detail"].startswith("state:")
    assert (await at.finish(back, record)).status == 303


async def test_a_second_cookie_of_a_sign_on_makes_both_worthless(at: Lab) -> None:
    """A page of a neighbouring domain can plant a cookie beside the gateway's own."""
    address, record = await at.begin()
    back = await at.back(address)
    assert (await at.finish(back, f"{record}; {COOKIE}={record}")).status == 401
    assert (await at.finish(back, record)).status == 303


async def test_a_device_code_is_asked_about_only_so_often(at: Lab) -> None:
    """Without a bound a stranger could flood the provider through the gateway."""
    begun = [(await at.browser.ask("POST", "/v1/session/device")).body for _ in range(2)]
    body = {"device": begun[0]["device"]}
    told = [
        (await at.browser.ask("POST", "/v1/session/device/token", json=body)).status
        for _ in range(POLLS_MAX + 2)
    ]
    assert set(told[:2]) == {202} and told[-1] == 429
    other = {"device": begun[1]["device"]}
    assert (await at.browser.ask("POST", "/v1/session/device/token", json=other)).status == 202


async def test_a_sign_on_and_its_code_work_once(at: Lab) -> None:
    address, record = await at.begin()
    back = await at.back(address)
    assert (await at.finish(back, record)).status == 303
    at.browser.token = ""
    answer = await at.finish(back, record)
    assert answer.status == 401 and "used already" in answer.body["detail"]
    code = back.split("code=")[1].split("&")[0]
    address, record = await at.begin()
    answer = await at.finish(
        f"/v1/session/oidc/callback?code={code}&state={state_in(address)}", record
    )
    assert answer.status == 401 and "invalid_grant" in answer.body["detail"]
    assert at.browser.token == ""


async def test_a_code_needs_the_verifier_of_its_sign_on(at: Lab) -> None:
    """Somebody who sees the code in a log cannot use it in a sign-on of their own."""
    stolen = (await at.back((await at.begin())[0])).split("code=")[1].split("&")[0]
    address, record = await at.begin()
    answer = await at.finish(
        f"/v1/session/oidc/callback?code={stolen}&state={state_in(address)}", record
    )
    assert answer.status == 401 and "invalid_grant" in answer.body["detail"]


async def test_an_answer_of_another_provider_is_not_accepted(at: Lab) -> None:
    address, record = await at.begin()
    back = await at.back(address)
    answer = await at.finish(f"{back}&iss=https://evil.example.org", record)
    assert answer.status == 401 and answer.body["detail"].startswith("iss:")


async def test_a_refusal_of_the_provider_is_shown_as_text(at: Lab) -> None:
    await at.provider.tell(claims=ADA, lies={"error": "<script>alert(1)</script>"})
    answer = await at.sign_on()
    assert answer.status == 401
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.example.org",
        "//evil.example.org",
        "/\\evil.example.org",
        "/%0d%0aset-cookie:x=y",
        "/%09/evil.example.org",
        "javascript:alert(1)",
        "jobs",
        "%2F%2Fevil.example.org",
        "/" + "a" * 2_000,
        "/a%5Cb",
        "/%C3%A9",
    ],
)
async def test_a_sign_on_leads_to_no_other_site(at: Lab, path: str) -> None:
    answer = await at.browser.ask("GET", f"/v1/session/oidc?next={path}")
    assert answer.status == 422 and "next:" in answer.body["detail"]


async def test_the_record_of_a_sign_on_is_no_session_and_no_device(at: Lab) -> None:
    _, record = await at.begin()
    for token in (record, (await at.browser.ask("POST", "/v1/session/device")).body["device"]):
        bearer = {"authorization": f"Bearer {token}"}
        assert (await at.browser.ask("GET", "/v1/jobs", headers=bearer)).status == 401
        assert (await at.browser.sign_in(link=token)).status == 401
        assert (await at.browser.sign_in(key=token)).status == 401
    body = {"device": record}
    answer = await at.browser.ask("POST", "/v1/session/device/token", json=body)
    assert answer.status == 401


async def test_a_flood_of_forged_keys_reads_the_keys_of_the_provider_rarely(at: Lab) -> None:
    await at.sign_on()
    for _ in range(4):
        await at.provider.tell(claims=ADA, rotate=True)
        await at.sign_on()
    assert (await at.provider.tell(claims=ADA))["keys_read"] <= 2


async def test_sign_ons_of_one_address_are_bounded(at: Lab) -> None:
    at.world.gateway.sign_on.begun.most = 3
    answers = [await at.browser.ask("GET", "/v1/session/oidc") for _ in range(5)]
    # A new minute may begin meanwhile.
    assert {answer.status for answer in answers} == {303, 429}
