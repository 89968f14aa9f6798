"""LoRA adapters: who may add one, which replica loads it, and what a request to it gets."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_replica import Replica, running
from tests.integration.openai_world import CHAT, MESSAGES, Ledger, add_replicas, error_of
from tests.integration.test_openai_named_models import chat, deployed

ROOT = {"root": "/lora"}


@asynccontextmanager
async def adapter_world(
    tmp_path: Path, count: int = 1, **rules: Any
) -> AsyncIterator[tuple[World, list[Replica]]]:
    """A gateway with the model `m`, and replicas that know it and their adapters alone."""
    async with gateway_world(tmp_path) as world, running() as first, running() as second:
        replicas = [first, second][:count]
        for replica in replicas:
            replica.base = "m"
        await deployed(world, "m", adapters={**ROOT, **rules})
        await add_replicas(world, "m", *replicas)
        yield world, replicas


async def add(world: World, *names: str, model: str = "m", status: int = 201) -> None:
    for name in names:
        body = {"path": f"/lora/{name}"}
        await world.ask("PUT", f"/v1/deployments/{model}/adapters/{name}", status, json=body)


async def failing(world: World, model: str, status: int) -> dict[str, Any]:
    body = {"model": model, "messages": MESSAGES}
    async with world.session.post(f"{world.url}{CHAT}", json=body) as response:
        return await error_of(response, status)


def models_in(replica: Replica) -> list[str]:
    return [json.loads(body)["model"] for body in replica.bodies]


async def test_a_request_to_an_adapter_loads_it_once_and_reaches_it(tmp_path: Path) -> None:
    async with adapter_world(tmp_path) as (world, (replica,)):
        await add(world, "sql")
        await chat(world, "m")
        assert replica.lora_calls == []
        for name in ("sql", "m:sql", "sql"):
            assert (await chat(world, name))["model"] == "sql"
        assert replica.lora_calls == ["load sql"] and replica.adapters == {"sql": "/lora/sql"}
        assert models_in(replica) == ["m", "sql", "sql", "sql"]
        (shown,) = (await world.ask("GET", "/v1/adapters"))["adapters"]
        assert (shown["model"], shown["name"], shown["path"]) == ("m", "sql", "/lora/sql")
        assert shown["loaded"] == ["m-1"]


async def test_streams_embeddings_and_forms_reach_an_adapter(tmp_path: Path) -> None:
    async with adapter_world(tmp_path) as (world, (replica,)):
        await add(world, "sql")
        body = {"model": "sql", "messages": MESSAGES, "stream": True}
        async with world.session.post(f"{world.url}{CHAT}", json=body) as response:
            assert response.status == 200 and b"[DONE]" in await response.read()
        await world.ask("POST", "/v1/embeddings", json={"model": "sql", "input": "i"})
        await world.ask("POST", "/v1/responses", json={"model": "m:sql", "input": "i"})
        assert models_in(replica) == ["sql", "sql", "sql"]
        assert replica.lora_calls == ["load sql"]


async def test_adapters_are_listed_with_their_model_as_parent(tmp_path: Path) -> None:
    async with adapter_world(tmp_path) as (world, _):
        await add(world, "sql")
        listed = (await world.ask("GET", "/v1/models"))["data"]
        assert [(each["id"], each.get("parent")) for each in listed] == [("m", None), ("sql", "m")]
        for name in ("sql", "m:sql"):
            shown = await world.ask("GET", f"/v1/models/{name}")
            assert (shown["id"], shown["parent"], shown["owned_by"]) == (name, "m", "default")
        whole = await world.ask("GET", "/v1/deployments/m")
        assert whole["adapter_names"] == ["sql"] and whole["adapters"]["root"] == "/lora"


@pytest.mark.attack
async def test_a_path_outside_the_root_is_refused_and_never_sent_to_a_replica(
    tmp_path: Path,
) -> None:
    async with adapter_world(tmp_path) as (world, (replica,)):
        for path in ("/etc/passwd", "/lora/../etc", "/lora", "lora/sql", "/lorax/sql"):
            problem = await world.ask(
                "PUT", "/v1/deployments/m/adapters/sql", 422, json={"path": path}
            )
            assert "outside the folder that the deployment of m allows" in problem["detail"]
        assert (await failing(world, "sql", 404))["code"] == "model_not_found"
        assert replica.lora_calls == []
        await add(world, "sql")
        problem = await world.ask(
            "POST", "/v1/deployments/m/redeploy", 422, json={"adapters": {"root": "/other"}}
        )
        assert "muster adapter remove m sql" in problem["detail"]


@pytest.mark.attack
async def test_a_guest_reads_neither_replica_nor_folder_of_an_adapter_that_cannot_be_loaded(
    tmp_path: Path,
) -> None:
    async with adapter_world(tmp_path) as (world, (replica,)):
        await add(world, "sql")
        replica.unloadable.add("/lora/sql")
        await world.ask("PUT", "/v1/tenants/biology", 201, json={})
        await world.ask("PATCH", "/v1/deployments/m/guests", json={"add": ["biology"]})
        assert "replica m-1 could not load it" in (await failing(world, "sql", 502))["message"]
        async with world.as_("member", "eve", "biology") as eve:
            error = await failing(eve, "m:sql", 502)
        assert error["code"] == "adapter_failed" and "'sql' of model 'm'" in error["message"]
        assert "/lora" not in error["message"] and "m-1" not in error["message"]


async def test_a_new_replica_loads_the_adapters_again(tmp_path: Path) -> None:
    async with adapter_world(tmp_path) as (world, (old,)), running() as new:
        new.base = "m"
        await add(world, "sql")
        await chat(world, "sql")
        await add_replicas(world, "m", new)
        await world.ask("POST", "/v1/jobs/m-1/cancel", 202, json={})
        await world.settle()
        assert (await chat(world, "sql"))["model"] == "sql"
        assert new.lora_calls == ["load sql"] and models_in(new) == ["sql"]
        assert models_in(old) == ["sql"]


async def test_a_server_that_lost_its_adapters_loads_them_again(tmp_path: Path) -> None:
    """A server that was started again within its job, or another gateway that unloaded one."""
    async with adapter_world(tmp_path) as (world, (replica,)):
        await add(world, "sql")
        await chat(world, "sql")
        replica.adapters.clear()
        assert (await chat(world, "sql"))["model"] == "sql"
        assert replica.lora_calls == ["load sql", "load sql"]


async def test_a_server_that_lost_an_adapter_and_cannot_load_it_is_not_avoided(
    tmp_path: Path,
) -> None:
    async with adapter_world(tmp_path) as (world, (replica,)):
        await add(world, "sql")
        await chat(world, "sql")
        replica.adapters.clear()
        replica.unloadable.add("/lora/sql")
        ledger = Ledger(100_000)
        world.gateway.meter = ledger
        assert (await failing(world, "sql", 502))["code"] == "adapter_failed"
        assert ledger.settled == [0]
        (endpoint,) = world.gateway.models.ready("m")
        loads = world.gateway.queues.of("m").rules.router.loads
        assert not loads.of(endpoint).is_avoided(world.gateway.clock.boot_ns())


async def test_an_adapter_that_another_gateway_loaded_is_ready(tmp_path: Path) -> None:
    async with adapter_world(tmp_path) as (world, (replica,)):
        await add(world, "sql")
        replica.adapters["sql"] = "/lora/sql"
        await chat(world, "sql")
        assert replica.lora_calls == ["load sql"]


async def test_the_least_recently_used_adapter_is_unloaded(tmp_path: Path) -> None:
    async with adapter_world(tmp_path, resident_max=2) as (world, (replica,)):
        await add(world, "a", "b", "c")
        for name in ("a", "b", "a", "c"):
            await chat(world, name)
        assert replica.lora_calls == ["load a", "load b", "unload b", "load c"]
        assert set(replica.adapters) == {"a", "c"}
        await chat(world, "b")
        assert set(replica.adapters) == {"b", "c"}


async def test_an_adapter_in_use_is_not_unloaded_and_a_request_waits_for_a_slot(
    tmp_path: Path,
) -> None:
    async with adapter_world(tmp_path, resident_max=1) as (world, (replica,)):
        await add(world, "a", "b")
        first = asyncio.create_task(chat(world, "a", x_delay_s=0.4))
        await asyncio.sleep(0.1)
        second = asyncio.create_task(chat(world, "b"))
        await asyncio.sleep(0.1)
        assert not second.done() and replica.lora_calls == ["load a"]
        await asyncio.gather(first, second)
        assert replica.lora_calls == ["load a", "unload a", "load b"]


async def test_requests_stay_at_the_replica_that_has_the_adapter(tmp_path: Path) -> None:
    async with adapter_world(tmp_path, 2) as (world, replicas):
        await add(world, "a", "b")
        for _ in range(6):
            await chat(world, "a")
        await asyncio.gather(*(chat(world, "b") for _ in range(6)))
        calls = [call for replica in replicas for call in replica.lora_calls]
        assert sorted(calls) == ["load a", "load b"]


async def test_a_folder_that_cannot_be_loaded_fails_its_requests_alone(tmp_path: Path) -> None:
    async with adapter_world(tmp_path) as (world, (replica,)):
        await add(world, "sql", "code")
        replica.unloadable.add("/lora/sql")
        for _ in range(3):
            error = await failing(world, "sql", 502)
            assert error["code"] == "adapter_failed" and error["param"] == "model"
            assert "No adapter found for /lora/sql" in error["message"]
        assert replica.lora_calls == ["load sql"], "the failure counts for a while"
        await chat(world, "m")
        await chat(world, "code")
        assert models_in(replica) == ["m", "code"]


async def test_another_replica_is_tried_if_one_cannot_load_the_adapter(tmp_path: Path) -> None:
    async with adapter_world(tmp_path, 2) as (world, replicas):
        await add(world, "sql")
        replicas[0].unloadable.add("/lora/sql")
        for _ in range(4):
            await chat(world, "sql")
        assert models_in(replicas[0]) == [] and len(replicas[1].bodies) == 4
        assert replicas[1].lora_calls == ["load sql"]


async def test_a_dead_replica_costs_a_request_to_an_adapter_only_time(tmp_path: Path) -> None:
    async with adapter_world(tmp_path) as (world, (alive,)):
        async with running() as dying:
            dying.base = "m"
            await add_replicas(world, "m", dying)
        await add(world, "a", "b", "c")
        for name in ("a", "b", "c"):
            assert (await chat(world, name))["model"] == name
        assert set(alive.adapters) == {"a", "b", "c"} and dying.lora_calls == []
        assert world.gateway.queues.of("m").is_idle


async def test_a_load_that_takes_too_long_fails_with_the_setting_s_name(tmp_path: Path) -> None:
    async with (
        gateway_world(tmp_path, model_adapter_ms=100) as world,
        running() as replica,
    ):
        replica.load_s = 0.5
        await deployed(world, "m", adapters=ROOT)
        await add_replicas(world, "m", replica)
        await add(world, "sql")
        error = await failing(world, "sql", 502)
        assert "longer than 0.1 s (MUSTER_MODEL_ADAPTER_MS)" in error["message"]
        await chat(world, "m")


async def test_a_client_that_leaves_while_an_adapter_is_loaded_holds_nothing(
    tmp_path: Path,
) -> None:
    async with adapter_world(tmp_path, resident_max=1) as (world, (replica,)):
        await add(world, "a", "b")
        replica.load_s = 0.3
        leaver = asyncio.create_task(chat(world, "a"))
        await asyncio.sleep(0.1)
        leaver.cancel()
        await asyncio.gather(leaver, return_exceptions=True)
        replica.load_s = 0.0
        await asyncio.sleep(0.1)
        await chat(world, "b")
        await chat(world, "m")
        assert world.gateway.queues.of("m").is_idle


async def test_two_tenants_have_adapters_of_the_same_name(tmp_path: Path) -> None:
    async with adapter_world(tmp_path) as (world, (mine,)), running() as theirs:
        await world.ask("PUT", "/v1/tenants/biology", 201, json={})
        async with world.as_("member", "eve", "biology") as eve:
            theirs.base = "bio"
            await deployed(eve, "bio", adapters={"root": "/bio"})
            await add_replicas(eve, "bio", theirs)
            await add(world, "sql")
            await chat(eve, "sql", 404)
            body = {"path": "/bio/sql"}
            await eve.ask("PUT", "/v1/deployments/bio/adapters/sql", 201, json=body)
            await eve.ask("PUT", "/v1/deployments/m/adapters/x", 404, json={"path": "/lora/x"})
            await chat(eve, "m:sql", 404)
            await chat(world, "sql")
            await chat(eve, "sql")
            listed = (await eve.ask("GET", "/v1/adapters"))["adapters"]
            assert [each["path"] for each in listed] == ["/bio/sql"]
        assert mine.adapters == {"sql": "/lora/sql"} and theirs.adapters == {"sql": "/bio/sql"}


async def test_a_guest_uses_the_adapters_of_a_shared_model_and_changes_none(
    tmp_path: Path,
) -> None:
    async with adapter_world(tmp_path) as (world, (replica,)):
        await add(world, "sql")
        await world.ask("PUT", "/v1/tenants/biology", 201, json={})
        await world.ask("PATCH", "/v1/deployments/m/guests", json={"add": ["biology"]})
        async with world.as_("member", "eve", "biology") as eve:
            await chat(eve, "sql")
            assert models_in(replica) == ["sql"]
            await eve.ask("DELETE", "/v1/deployments/m/adapters/sql", 404, json={})
            assert (await eve.ask("GET", "/v1/adapters"))["adapters"] == []
            assert "/lora" not in json.dumps(await eve.ask("GET", "/v1/deployments/m"))


async def test_a_removed_adapter_is_unknown_at_once_and_is_unloaded(tmp_path: Path) -> None:
    async with adapter_world(tmp_path) as (world, (replica,)):
        await add(world, "sql")
        await chat(world, "sql")
        async with world.as_("member", "bob") as bob:
            await bob.ask("DELETE", "/v1/deployments/m/adapters/sql", 403, json={})
        await world.ask("DELETE", "/v1/deployments/m/adapters/sql", 204)
        await chat(world, "sql", 404)
        problem = await world.ask("DELETE", "/v1/deployments/m/adapters/sql", 404)
        assert "has no adapter 'sql'" in problem["detail"]
        world.gateway.queues.refresh()
        await asyncio.sleep(0.1)
        assert replica.lora_calls == ["load sql", "unload sql"] and replica.adapters == {}


async def test_another_path_replaces_the_adapter_also_if_another_gateway_loaded_the_old_one(
    tmp_path: Path,
) -> None:
    async with adapter_world(tmp_path) as (world, (replica,)):
        await add(world, "sql")
        await chat(world, "sql")
        path = "/v1/deployments/m/adapters/sql"
        await world.ask("PUT", path, 200, json={"path": "/lora/new"})
        await chat(world, "sql")
        assert replica.adapters == {"sql": "/lora/new"}
        await world.ask("DELETE", path, 204)
        await add(world, "sql")
        assert replica.adapters == {"sql": "/lora/new"}
        await chat(world, "sql")
        assert replica.adapters == {"sql": "/lora/sql"}
        await world.ask("DELETE", path, 204)
        world.gateway.queues.refresh()
        await asyncio.sleep(0.1)
        replica.adapters["sql"] = "/lora/new"
        await add(world, "sql")
        await chat(world, "sql")
        assert replica.adapters == {"sql": "/lora/sql"}


async def test_a_server_with_adapters_of_its_own_is_asked_to_load_none(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, running() as replica:
        replica.base, replica.adapters = "m", {"sql": "/anywhere"}
        await deployed(world, "m", adapters={"api": "none"})
        await add_replicas(world, "m", replica)
        await world.ask("PUT", "/v1/deployments/m/adapters/sql", 201, json={})
        assert (await chat(world, "m:sql"))["model"] == "sql" and replica.lora_calls == []


async def test_sglang_gets_the_adapter_after_the_name_of_its_model(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, running() as replica:
        replica.base = "Org/M"
        await deployed(world, "m", served_name="Org/M", adapters={**ROOT, "api": "sglang"})
        await add_replicas(world, "m", replica)
        await add(world, "sql")
        await chat(world, "sql")
        replica.adapters.clear()
        await chat(world, "sql")
        assert set(models_in(replica)) == {"Org/M:sql"} and replica.adapters == {"sql": "/lora/sql"}


async def test_tokens_and_usage_count_for_the_tenant_and_the_model(tmp_path: Path) -> None:
    async with adapter_world(tmp_path) as (world, (replica,)):
        await add(world, "sql", "bad")
        replica.unloadable.add("/lora/bad")
        ledger = Ledger(100_000)
        world.gateway.meter = ledger
        await chat(world, "sql")
        await failing(world, "bad", 502)
        assert ledger.settled == [12, 0]
        rows = world.gateway.usage.rows
        assert [(row.tenant, row.model) for row in rows] == [("default", "m")]


async def test_requests_to_an_adapter_are_joined_with_their_own_kind_alone(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world, running() as replica:
        replica.base = "m"
        batching = {"items_max": 8, "wait_ms": 500}
        await deployed(world, "m", adapters=ROOT, batching=batching)
        await add_replicas(world, "m", replica)
        await add(world, "sql")
        body = {"prompt": "a", "max_tokens": 1}
        asked = [
            world.ask("POST", "/v1/completions", json={**body, "model": name})
            for name in ("sql", "m", "sql", "m")
        ]
        assert [each["model"] for each in await asyncio.gather(*asked)] == ["sql", "m", "sql", "m"]
        # Each pair goes as one, and then one by one, as the stand-in answers with one choice.
        assert sorted(models_in(replica)) == ["m"] * 3 + ["sql"] * 3
