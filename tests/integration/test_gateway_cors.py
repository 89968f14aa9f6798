"""Cross-origin requests: nothing is allowed unless origins are set, and then only to those."""

from pathlib import Path

import pytest

from libs.common.errors import Refused
from services.api_gateway.http.cors import Cors
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_world import CHAT, model_world

PAGE = "https://chat.example.org"
ALLOW = "access-control-allow-origin"
ASKS = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}


async def preflight(world: World, **headers: str) -> tuple[int, dict[str, str]]:
    async with world.session.options(world.url + CHAT, headers={**ASKS, **headers}) as response:
        return response.status, {name.lower(): value for name, value in response.headers.items()}


async def test_by_default_no_page_is_allowed(tmp_path: Path) -> None:
    async with model_world(tmp_path) as (world, _):
        status, headers = await preflight(world)
        assert status == 405 and not any(name.startswith("access-control") for name in headers)
        body, origin = {"model": "m"}, {"origin": PAGE}
        async with world.session.post(world.url + CHAT, json=body, headers=origin) as response:
            assert response.status == 200 and ALLOW not in response.headers


async def test_a_page_of_a_set_origin_may_ask_and_read_answers(tmp_path: Path) -> None:
    origins = f"https://other.example.org, {PAGE}/"
    async with model_world(tmp_path, gateway_cors_origins=origins) as (world, _):
        status, headers = await preflight(world)
        assert status == 204 and headers[ALLOW] == PAGE and headers["vary"] == "origin"
        assert headers["access-control-allow-headers"] == "authorization,content-type"
        assert "POST" in headers["access-control-allow-methods"]
        for key, status in (({}, 200), ({"authorization": "Bearer wrong"}, 401)):
            async with world.session.post(
                world.url + CHAT, json={"model": "m"}, headers={"origin": PAGE, **key}
            ) as response:
                assert (response.status, response.headers[ALLOW]) == (status, PAGE)
        async with world.session.get(
            world.url + "/v1/cluster", headers={"origin": PAGE}
        ) as response:
            assert response.headers[ALLOW] == PAGE


@pytest.mark.parametrize("origin", ["https://evil.example.org", PAGE + ".evil.org", "null"])
async def test_a_page_of_another_origin_is_not_allowed(tmp_path: Path, origin: str) -> None:
    async with gateway_world(tmp_path, gateway_cors_origins=PAGE) as world:
        status, headers = await preflight(world, origin=origin)
        assert status == 405 and ALLOW not in headers


async def test_a_star_allows_every_page(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, gateway_cors_origins="*") as world:
        assert (await preflight(world, origin="https://any.example.org"))[1][ALLOW] == (
            "https://any.example.org"
        )


@pytest.mark.parametrize(
    "origins", ["chat.example.org", "https://a b", "ftp://x", "https://x/path"]
)
def test_a_setting_that_is_no_origin_is_refused_with_an_example(origins: str) -> None:
    with pytest.raises(Refused, match="is not an origin: give for example"):
        Cors(origins)
