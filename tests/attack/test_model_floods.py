"""A tenant deploys as many models as its limit says, also with many requests at one moment, and
adds only so many names to the state.
"""

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from libs.common.facts import AnyFact
from services.api_gateway.intents import model_intents
from tests.integration.gateway_world import World, gateway_world

pytestmark = pytest.mark.attack

LIMIT: Final = 3


def model(name: str) -> dict[str, Any]:
    return {"name": name, "command": ["serve"]}


async def status_of(world: World, name: str) -> int:
    url = world.url + "/v1/deployments"
    async with world.session.post(url, json=model(name)) as response:
        return response.status


async def retry_after(world: World, name: str) -> str:
    url = world.url + "/v1/deployments"
    async with world.session.post(url, json=model(name)) as response:
        assert response.status == 503
        return response.headers["Retry-After"]


async def test_a_tenant_deploys_no_more_models_than_it_may_have(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.ask("PUT", "/v1/tenants/physics", 201, json={"max_models": LIMIT})
        async with world.as_("member", "ada", "physics") as ada:
            names = [f"m-{number}" for number in range(4 * LIMIT)]
            found = await asyncio.gather(*(status_of(ada, name) for name in names))
            assert sorted(found) == [201] * LIMIT + [422] * 3 * LIMIT
            refused = await ada.ask("POST", "/v1/deployments", 422, json=model("late"))
            assert "may have 3 deployed models and has 3: undeploy one" in refused["detail"]
            listed = (await ada.ask("GET", "/v1/deployments"))["deployments"]
            first = listed[0]["name"]
            await ada.ask("POST", f"/v1/deployments/{first}/redeploy", 202, json={})
            await world.ask("POST", "/v1/deployments", 201, json=model("of-another-tenant"))
            await ada.ask("DELETE", f"/v1/deployments/{first}", 202)
            await ada.ask("POST", "/v1/deployments", 201, json=model("late"))
            await world.ask("PUT", "/v1/tenants/physics", 200, json={})
            await ada.ask("POST", "/v1/deployments", 201, json=model(first))


async def test_a_tenant_adds_no_more_names_by_undeploying_than_it_may_have_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_intents, "MODELS_DEFAULT", LIMIT)
    async with gateway_world(tmp_path) as world:
        await world.ask("PUT", "/v1/tenants/physics", 201, json={"max_models": 1})
        async with world.as_("member", "ada", "physics") as ada:
            for number in range(LIMIT):
                await ada.ask("POST", "/v1/deployments", 201, json=model(f"m-{number}"))
                await ada.ask("DELETE", f"/v1/deployments/m-{number}", 202)
            refused = await ada.ask("POST", "/v1/deployments", 422, json=model("late"))
            assert "has 3 undeployed models that still count" in refused["detail"]
            await ada.ask("POST", "/v1/deployments", 201, json=model("m-0"))
        await world.ask("POST", "/v1/deployments", 201, json=model("of-another-tenant"))
        assert len(world.gateway.cluster.models) == LIMIT + 1


async def test_deployments_do_not_wait_for_ever_for_those_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_world(tmp_path, record_ms=200) as world:
        recorded, begun, go = world.gateway.record, asyncio.Event(), asyncio.Event()

        async def record(*facts: AnyFact) -> int:
            begun.set()
            await go.wait()
            return await recorded(*facts)

        monkeypatch.setattr(world.gateway, "record", record)
        first = asyncio.create_task(status_of(world, "first"))
        await begun.wait()
        async with asyncio.timeout(5.0):
            refused = await world.ask("POST", "/v1/deployments", 503, json=model("second"))
        assert "earlier requests" in refused["detail"]
        assert int(await retry_after(world, "second")) > 0
        go.set()
        assert await first == 201
        assert await status_of(world, "second") == 201
        assert len(world.gateway.claims) == 0
