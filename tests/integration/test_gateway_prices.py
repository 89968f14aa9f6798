"""Prices, policies for idle GPUs, usage and charges over real HTTP and a real archive."""

import csv
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common import facts as f
from services.api_gateway.views.charges import ChargeList, as_csv
from services.api_gateway.views.usage import UsageTotal
from tests.integration.gateway_world import World, gateway_world
from tests.integration.test_openai_usage import billed_world, chat, end_replica, usage


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as found:
        yield found


async def test_a_price_is_set_listed_and_removed(world: World) -> None:
    body = {"price": "2.50", "currency": "EUR"}
    (price,) = (await world.ask("PUT", "/v1/prices/h100", json=body))["prices"]
    assert (price["name"], price["price"], price["currency"]) == ("h100", "2.50", "EUR")
    assert price["micros_per_hour"] == 2_500_000 and price["until"] is None
    await world.ask("PUT", "/v1/prices/h100", json={"price": 3})
    found = (await world.ask("GET", "/v1/prices"))["prices"]
    assert [each["price"] for each in found] == ["2.50", "3.00"]
    assert found[0]["until"] == found[1]["since"]
    await world.ask("DELETE", "/v1/prices/h100", 204)
    assert (await world.ask("GET", "/v1/prices"))["prices"][1]["until"] is not None
    await world.ask("DELETE", "/v1/prices/h100", 404)
    await world.ask("PUT", "/v1/prices/h100", 422, json={"price": "much"})
    said = [fact for fact in await world.said() if isinstance(fact, f.PriceSet)]
    assert [fact.removed for fact in said] == [False, False, True]


async def test_a_policy_for_idle_gpus_is_set(world: World) -> None:
    body = {"action": "release", "idle_for": "2m", "grace": 30}
    tenant = await world.ask("PUT", "/v1/tenants/default/idle", json=body)
    assert (tenant["idle_action"], tenant["idle_s"], tenant["idle_grace_s"]) == ("release", 120, 30)
    await world.ask("PUT", "/v1/tenants/nobody/idle", 404, json=body)
    await world.ask("PUT", "/v1/tenants/default/idle", 422, json={"action": "kill"})


async def test_members_read_prices_and_set_none(world: World) -> None:
    async with world.as_("member", "ada") as ada:
        assert (await ada.ask("GET", "/v1/prices"))["prices"] == []
        await ada.ask("PUT", "/v1/prices/h100", 403, json={"price": 1, "currency": "EUR"})
        await ada.ask("PUT", "/v1/tenants/default/idle", 403, json={"action": "off"})


async def test_parameters_of_usage_and_charges_are_checked(world: World) -> None:
    for path, words in (
        ("/v1/usage?by=day,month", "several periods"),
        ("/v1/usage?by=nothing", "by: 'nothing' is not known"),
        ("/v1/charges?limit=0", "limit"),
        ("/v1/charges?format=xml", "format"),
        ("/v1/charges?since=1h&until=2h", "is not after since"),
    ):
        found = await world.ask("GET", path, 422)
        assert words in str(found), found


async def test_members_ask_for_the_use_of_their_own_tenant_only(world: World) -> None:
    async with world.as_("member", "ada") as ada:
        for path in ("/v1/usage", "/v1/charges"):
            found = await ada.ask("GET", f"{path}?tenant=others", 422)
            assert "tenant: 'others' is not shown to your role" in str(found)
            await ada.ask("GET", f"{path}?tenant=default&user=ada", 503)  # there is no audit here


async def test_without_audit_there_are_no_charges(world: World) -> None:
    await world.ask("GET", "/v1/charges", 503)


async def test_usage_has_costs_and_the_time_of_the_whole_fleet(tmp_path: Path) -> None:
    async with billed_world(tmp_path) as (world, _), world.as_("member", "eve", "biology") as eve:
        await world.ask("PUT", "/v1/prices/any", json={"price": 3.6, "currency": "EUR"})
        await chat(eve, "m")
        await world.gateway.usage.flush()
        await end_replica(world, run_ms=10_000)
        found = await usage(world, "tenant,gpu,job,hour")
        micros = [line["cost_micros"] for line in found["usage"]]
        assert sum(micros) == found["charged_micros"]["default"]["EUR"] > 0
        assert found["total"]["costs_micros"] == found["charged_micros"]["default"]
        assert found["total"]["share_ms"] == 1_000_000
        assert {line["job"] for line in found["usage"]} == {"m-1"}
        assert all(line["gpu"] and line["period"] for line in found["usage"] if line["share_ms"])
        (fleet,) = (await world.ask("GET", "/v1/usage", params={"fleet": "true"}))["fleet"]
        parts = sum(fleet[name] for name in fleet if name not in ("gpu", "capacity_share_ms"))
        assert parts == fleet["capacity_share_ms"] > 0
        assert (await eve.ask("GET", "/v1/usage", params={"fleet": "true"}))["fleet"] == []
        (charge,) = (await world.ask("GET", "/v1/charges"))["charges"]
        assert (charge["job"], charge["model"], charge["share_ms"]) == ("m-1", "m", 1_000_000)
        assert charge["costs_micros"] == found["total"]["costs_micros"]
        assert (await eve.ask("GET", "/v1/charges"))["charges"] == []


def test_the_header_of_csv_names_each_column_once() -> None:
    text = as_csv(ChargeList([], UsageTotal(), 0, 0))
    (header,) = csv.reader(io.StringIO(text))
    assert len(header) == len(set(header)) and header[:3] == ["job", "attempt", "tenant"]
