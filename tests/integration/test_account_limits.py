"""Limits of keys and of tenants at models, over two gateways and one quota."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from services.api_gateway.openai.catalogue import Deployed
from tests.integration.gateway_world import World
from tests.integration.openai_world import CHAT, add_replicas, error_of
from tests.integration.test_rate_limits import MODEL, Limits, limits_world


async def settled(limits: Limits) -> None:
    """Everything in the log is folded, by both gateways and by quota."""
    _, last = await limits.admin.log.bounds()
    for world in limits.gateways:
        await world.gateway.settle(last)
    while limits.quota.service.state.seq < last:
        await asyncio.sleep(0.01)


@asynccontextmanager
async def key_of(limits: Limits, tenant: str, **fields: Any) -> AsyncIterator[tuple[World, World]]:
    """Both gateways, asked with a new key of the tenant."""
    body = {"user": "eve", "tenant": tenant, **fields}
    made = await limits.admin.ask("POST", "/v1/keys", 201, json=body)
    await settled(limits)
    headers = {"authorization": f"Bearer {made['key']}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        one, two = (
            World(world.gateway, world.running, session, world.url) for world in limits.gateways
        )
        yield one, two


async def sent(worlds: tuple[World, World], count: int) -> Counter[int]:
    """Send so many requests, half of them to each gateway; return the statuses."""

    async def one(world: World) -> int:
        async with world.session.post(world.url + CHAT, json=MODEL) as response:
            await response.read()
            return response.status

    return Counter(await asyncio.gather(*(one(worlds[number % 2]) for number in range(count))))


async def key_id_of(world: World) -> str:
    found: str = (await world.ask("GET", "/v1/whoami"))["key_id"]
    return found


async def test_a_key_s_limit_holds_over_all_gateways_and_for_no_other_key(tmp_path: Path) -> None:
    async with (
        limits_world(tmp_path) as limits,
        key_of(limits, "physics", requests_per_minute=5) as worlds,
    ):
        assert await sent(worlds, 40) == {200: 5, 429: 35}
        assert await sent(limits.gateways, 20) == {200: 20}
        key_id = await key_id_of(worlds[0])
        async with worlds[0].session.post(worlds[0].url + CHAT, json=MODEL) as response:
            error = await error_of(response, 429)
            assert (
                error["message"] == f"key {key_id} may send 5 requests a minute, and has sent them"
            )
            assert 1 <= int(response.headers["retry-after"]) <= 60
            assert response.headers["x-ratelimit-limit-requests"] == "5"


async def test_the_limits_of_a_key_can_be_changed_and_ended(tmp_path: Path) -> None:
    async with limits_world(tmp_path) as limits, key_of(limits, "physics") as worlds:
        path = f"/v1/keys/{await key_id_of(worlds[0])}/limits"
        shown = await limits.admin.ask("PUT", path, json={"tokens_per_minute": 40})
        assert (shown["requests_per_minute"], shown["tokens_per_minute"]) == (0, 40)
        await settled(limits)
        async with worlds[1].session.post(worlds[1].url + CHAT, json=MODEL) as response:
            assert "may use 40 tokens a minute" in (await error_of(response, 400))["message"]
        await limits.admin.ask("PUT", path, json={})
        await settled(limits)
        assert await sent(worlds, 10) == {200: 10}
        await worlds[0].ask("PUT", path, 403, json={})
        await limits.admin.ask("PUT", "/v1/keys/gone/limits", 404, json={})


async def test_the_tightest_limit_decides_and_is_told(tmp_path: Path) -> None:
    async with (
        limits_world(tmp_path) as limits,
        key_of(limits, "physics", requests_per_minute=50) as worlds,
    ):
        await limits.limit(requests_per_minute=3, tokens_per_minute=100_000)
        for left in ("2", "1", "0"):
            async with worlds[0].session.post(worlds[0].url + CHAT, json=MODEL) as response:
                assert response.status == 200
                found = [
                    response.headers[f"x-ratelimit-{name}-requests"]
                    for name in ("limit", "remaining")
                ]
                assert found == ["3", left]
                assert response.headers["x-ratelimit-limit-tokens"] == "100000"
        async with worlds[0].session.post(worlds[0].url + CHAT, json=MODEL) as response:
            message = (await error_of(response, 429))["message"]
            assert message == "tenant physics may send 3 requests a minute, and has sent them"


async def test_a_request_that_one_account_refuses_takes_nothing_from_the_others(
    tmp_path: Path,
) -> None:
    async with (
        limits_world(tmp_path) as limits,
        key_of(limits, "physics", requests_per_minute=6, tokens_per_minute=100_000) as worlds,
    ):
        await limits.limit(requests_per_minute=2)
        assert await sent((worlds[0], worlds[0]), 30) == {200: 2, 429: 28}
        await limits.limit(requests_per_minute=0)
        assert await sent((worlds[0], worlds[0]), 10) == {200: 4, 429: 6}


async def test_a_guest_has_limits_at_a_model_beside_its_own(tmp_path: Path) -> None:
    async with limits_world(tmp_path) as limits:
        await limits.admin.ask("PUT", "/v1/tenants/biology", 201, json={})
        await limits.admin.ask("PUT", "/v1/tenants/geology", 201, json={})
        owner = limits.gateways[0]
        body = {"name": "m", "command": ["serve", "{port}"]}
        await owner.ask("POST", "/v1/deployments", 201, json=body)
        await add_replicas(limits.admin, "m", limits.replica)
        shares = "/v1/deployments/m/guests"
        await owner.ask("PUT", "/v1/deployments/m/limits/*", json={"requests_per_minute": 4})
        await owner.ask("PUT", "/v1/deployments/m/limits/biology", json={"requests_per_minute": 2})
        shown = await owner.ask("PATCH", shares, json={"add": ["*"]})
        assert shown["limits"] == {
            "*": {"requests_per_minute": 4, "tokens_per_minute": 0},
            "biology": {"requests_per_minute": 2, "tokens_per_minute": 0},
        }
        for world in limits.gateways:
            gateway = world.gateway
            gateway.models = Deployed(
                lambda gateway=gateway: gateway.cluster, gateway.clock.wall_ns
            )
        async with key_of(limits, "biology") as biology, key_of(limits, "geology") as geology:
            assert await sent(biology, 20) == {200: 2, 429: 18}
            assert await sent(geology, 20) == {200: 4, 429: 16}
            assert await sent(limits.gateways, 20) == {200: 20}
            async with biology[0].session.post(biology[0].url + CHAT, json=MODEL) as response:
                message = (await error_of(response, 429))["message"]
                assert message.startswith("tenant biology at model m may send 2 requests a minute")
            seen = await biology[0].ask("GET", "/v1/deployments/m")
            assert list(seen["limits"]) == ["biology"]
            await biology[0].ask("PUT", "/v1/deployments/m/limits/biology", 404, json={})
        await owner.ask("PUT", "/v1/deployments/m/limits/Biology", 422, json={})


async def test_without_quota_only_requests_with_a_limit_are_refused(tmp_path: Path) -> None:
    async with (
        limits_world(tmp_path) as limits,
        key_of(limits, "physics", tokens_per_minute=100_000) as worlds,
    ):
        await limits.quota.kill()
        async with worlds[0].session.post(worlds[0].url + CHAT, json=MODEL) as response:
            assert (await error_of(response, 503))["code"] == "limits_unavailable"
        assert await sent(limits.gateways, 10) == {200: 10}
        await limits.quota.start()
