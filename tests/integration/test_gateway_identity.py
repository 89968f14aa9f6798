"""Tenants and keys over real HTTP: shown once, hashed, rotated with a grace, revoked at once."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common.transport.log_memory import MemoryStream
from tests.integration.gateway_world import World, gateway_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as found:
        yield found


async def whoami(world: World, key: str, status: int = 200) -> dict[str, str]:
    found: dict[str, str] = await world.ask(
        "GET", "/v1/whoami", status, headers={"authorization": f"Bearer {key}"}
    )
    return found


async def test_a_key_is_shown_once_and_only_its_hash_is_in_the_log(world: World) -> None:
    made = await world.ask(
        "POST",
        "/v1/keys",
        201,
        json={"user": "ada", "name": "laptop", "role": "viewer", "expires_in": "90d"},
    )
    assert await whoami(world, made["key"]) == {
        "key_id": made["id"],
        "tenant": "default",
        "user": "ada",
        "role": "viewer",
    }
    listed = (await world.ask("GET", "/v1/keys"))["keys"]
    assert [(key["id"], key["name"], key["created_by"], "key" in key) for key in listed] == [
        (made["id"], "laptop", "tests", False)
    ]
    entries = [await world.log.get(seq) for seq in range(1, (await world.log.bounds())[1] + 1)]
    secret = made["key"].split("_", 2)[2].encode()  # which may hold more of them
    assert entries and all(entry is not None and secret not in entry.data for entry in entries)


async def test_a_revoked_key_is_void_at_every_gateway(tmp_path: Path) -> None:
    stream = MemoryStream()
    async with (
        gateway_world(tmp_path, stream) as world,
        gateway_world(tmp_path, stream, instance="b") as other,
    ):
        made = await world.ask("POST", "/v1/keys", 201, json={"user": "ada"})
        await other.settle()
        assert (await whoami(other, made["key"]))["user"] == "ada"
        await world.ask("DELETE", f"/v1/keys/{made['id']}", 204)
        await other.settle()
        await whoami(world, made["key"], 401)
        await whoami(other, made["key"], 401)
        await world.ask("DELETE", f"/v1/keys/{made['id']}", 404)


async def test_a_rotated_key_keeps_its_name_and_its_old_secret_for_the_grace(world: World) -> None:
    first = await world.ask("POST", "/v1/keys", 201, json={"user": "ada"})
    second = await world.ask("POST", f"/v1/keys/{first['id']}/rotate", json={"grace": "1h"})
    assert (second["id"], second["key"] != first["key"]) == (first["id"], True)
    assert await whoami(world, first["key"]) == await whoami(world, second["key"])
    third = await world.ask("POST", f"/v1/keys/{first['id']}/rotate", json={"grace": 0})
    for key, status in ((first["key"], 401), (second["key"], 401), (third["key"], 200)):
        await whoami(world, key, status)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "user: missing"),
        ({"user": "a b"}, "user:"),
        ({"user": "ada", "role": "root"}, "role: 'root' is not known"),
        ({"user": "ada", "tenant": "unknown"}, "tenant: 'unknown' does not exist"),
        ({"user": "ada", "expires_in": "soon"}, "expires_in"),
        ({"user": "ada", "expires_in": "0s"}, "expires_in"),
        ({"user": "ada", "name": "a\nb"}, "name:"),
        ({"user": "ada", "secret": "x"}, "'secret' is not known"),
    ],
)
async def test_invalid_key_request_is_refused_by_field(
    world: World, body: dict[str, object], named: str
) -> None:
    assert named in (await world.ask("POST", "/v1/keys", 422, json=body))["detail"]


async def test_a_tenant_is_made_changed_and_removed_when_it_is_empty(world: World) -> None:
    limits = {
        "max_gpus": 8.5,
        "max_waiting": 9,
        "gpu_hours": 100,
        "gpu_hours_per": "month",
        "requests_per_minute": 60,
        "tokens_per_minute": 1000,
        "shares_devices": True,
        "max_models": 3,
    }
    made = await world.ask("PUT", "/v1/tenants/physics", 201, json=limits)
    assert {name: made[name] for name in limits} == limits
    assert (await world.said())[-1] == f.TenantSet(
        tenant="physics", max_gpu_share=850, max_waiting=9, gpu_hours=100, requests_per_minute=60,
        tokens_per_minute=1000,
        shares_devices=True, user="tests", gpu_hours_per="month", max_models=3,
    )  # fmt: skip
    assert (
        "one of life, month"
        in (await world.ask("PUT", "/v1/tenants/physics", 422, json={"gpu_hours_per": "week"}))[
            "detail"
        ]
    )
    async with world.as_("member", "ada", "physics") as ada:
        job = (await ada.submit())["id"]
        detail = (await world.ask("DELETE", "/v1/tenants/physics", 409))["detail"]
        assert "1 jobs" in detail and "1 keys" in detail
        key = (await world.ask("GET", "/v1/keys?tenant=physics"))["keys"][0]["id"]
        await world.ask("DELETE", f"/v1/keys/{key}", 204)
        await ada.ask("GET", "/v1/jobs", 401)
    await world.writers.admit(job)
    await world.writers.begin_term()
    await world.writers.queue_admitted(job)
    await world.writers.close(job, "cancelled")
    await world.settle()
    await world.ask("DELETE", "/v1/tenants/physics", 204)
    await world.ask("GET", "/v1/tenants/physics", 404)
    assert [each["name"] for each in (await world.ask("GET", "/v1/tenants"))["tenants"]] == [
        "default"
    ]
    detail = (await world.ask("PUT", "/v1/tenants/physics", 409))["detail"]
    assert "a tenant of this name was removed" in detail and "choose another name" in detail


async def test_the_default_tenant_stays(world: World) -> None:
    await world.ask("DELETE", "/v1/tenants/default", 409)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("A", {}),
        ("a", {"max_gpus": -1}),
        ("a", {"max_gpus": 0.001}),
        ("a", {"weight": 0}),
        ("a", []),
    ],
)
async def test_a_tenant_that_makes_no_sense_is_refused(
    world: World, name: str, body: object
) -> None:
    await world.ask("PUT", f"/v1/tenants/{name}", 422, json=body)
