"""Forged X-Forwarded-For: it neither gives a client another client's bound of sign-ons, nor another
source in the access records.
"""

from pathlib import Path

import pytest

from libs.common.messages import access_entry
from services.api_gateway.access.sessions import SIGN_ONS_MAX
from tests.integration.sign_on_world import Lab, lab


async def begin(at: Lab, forwarded: str) -> int:
    headers = {"x-forwarded-for": forwarded}
    return (await at.browser.ask("GET", "/v1/session/oidc", headers=headers)).status


def sources(at: Lab) -> list[str]:
    found = access_entry.unpack(access_entry.pack(at.world.gateway.access.waiting))
    return [entry.source for entry in found]


@pytest.mark.parametrize("proxies", ["", "192.0.2.0/24"])
async def test_the_header_of_a_client_that_is_no_trusted_proxy_is_ignored(
    tmp_path: Path, proxies: str
) -> None:
    async with lab(tmp_path, gateway_trusted_proxies=proxies) as at:
        told = [await begin(at, f"203.0.113.{number}") for number in range(SIGN_ONS_MAX + 1)]
        assert (set(told[:-1]), told[-1]) == ({303}, 429)
        assert set(sources(at)) <= {"127.0.0.1"}


async def test_behind_a_trusted_proxy_each_client_has_its_own_bound(tmp_path: Path) -> None:
    async with lab(tmp_path, gateway_trusted_proxies="127.0.0.1") as at:
        # The client writes another address each time; the proxy appends the true one.
        told = [
            await begin(at, f"198.51.100.{number}, 203.0.113.5")
            for number in range(SIGN_ONS_MAX + 1)
        ]
        assert (set(told[:-1]), told[-1]) == ({303}, 429)
        assert await begin(at, "203.0.113.6") == 303
        assert sources(at)[-1] == "203.0.113.6"
