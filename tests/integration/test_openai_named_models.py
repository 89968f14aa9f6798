"""Names of models: what clients may write into `model`, and what the replica's server gets."""

import json
from pathlib import Path
from typing import Any

from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_replica import running
from tests.integration.openai_world import CHAT, MESSAGES, add_replicas, error_of

COMMAND = ["serve", "{port}"]
QWEN = "Qwen/Qwen2.5-7B"


async def deployed(world: World, name: str, **fields: Any) -> None:
    body = {"name": name, "command": COMMAND, **fields}
    await world.ask("POST", "/v1/deployments", 201, json=body)


async def listed(world: World) -> dict[str, str]:
    models = (await world.ask("GET", "/v1/models"))["data"]
    return {each["id"]: each["owned_by"] for each in models}


async def chat(world: World, model: str, status: int = 200, **fields: Any) -> Any:
    body = {"model": model, "messages": MESSAGES, **fields}
    return await world.ask("POST", CHAT, status, json=body)


async def test_a_request_may_use_each_name_and_the_server_gets_its_own(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, running() as replica:
        await deployed(world, "qwen", served_name=QWEN)
        await add_replicas(world, "qwen", replica)
        shown = await world.ask(
            "PATCH", "/v1/deployments/qwen/aliases", json={"add": ["gpt-4o", "a/b"]}
        )
        assert (shown["served_name"], shown["aliases"]) == (QWEN, ["a/b", "gpt-4o"])
        assert await listed(world) == dict.fromkeys(("qwen", "gpt-4o", "a/b", QWEN), "default")
        for name in ("qwen", "gpt-4o", "a/b", QWEN):
            await chat(world, name)
            await world.ask("POST", "/v1/embeddings", json={"model": name, "input": "i"})
        sent = [json.loads(body) for body in replica.bodies]
        assert {each["model"] for each in sent} == {QWEN} and len(sent) == 8
        assert all("messages" in each or each["input"] == "i" for each in sent)


async def test_a_body_with_the_server_s_name_goes_on_byte_for_byte(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, running() as replica:
        await deployed(world, "qwen", served_name=QWEN)
        await add_replicas(world, "qwen", replica)
        body = b'{ "x_a" : 1,  "model":"Qwen\\/Qwen2.5-7B", "messages": [] }'
        await world.ask("POST", CHAT, data=body)
        await world.ask("POST", CHAT, data=body.replace(b"Qwen\\/Qwen2.5-7B", b"qwen"))
        assert replica.bodies[0] == body
        assert json.loads(replica.bodies[1]) == json.loads(body)


async def test_a_model_is_shown_under_each_name_also_with_a_slash(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await deployed(world, "qwen", served_name=QWEN)
        for path in (QWEN, QWEN.replace("/", "%2F")):
            assert (await world.ask("GET", f"/v1/models/{path}"))["id"] == QWEN
        async with world.session.get(f"{world.url}/v1/models/Qwen/other") as response:
            assert (await error_of(response, 404))["code"] == "model_not_found"


async def test_while_a_model_is_redeployed_each_replica_gets_the_name_that_it_knows(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world, running() as old, running() as new:
        await deployed(world, "m", served_name="v1")
        await add_replicas(world, "m", old)
        await world.ask("POST", "/v1/deployments/m/redeploy", 202, json={"served_name": "v2"})
        await add_replicas(world, "m", new)
        for _ in range(8):
            await chat(world, "m")
        assert {json.loads(body)["model"] for body in old.bodies} == {"v1"}
        assert {json.loads(body)["model"] for body in new.bodies} == {"v2"}


async def test_an_alias_is_of_its_tenant_alone_and_ends_when_it_is_taken_away(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world, running() as replica:
        await deployed(world, "m")
        await add_replicas(world, "m", replica)
        await world.ask("PATCH", "/v1/deployments/m/aliases", json={"add": ["gpt-4o"]})
        await chat(world, "gpt-4o")
        assert json.loads(replica.bodies[0])["model"] == "m"
        await world.ask("PUT", "/v1/tenants/other", 201, json={})
        async with world.as_("member", "eve", "other") as eve:
            await chat(eve, "gpt-4o", 404)
            assert await listed(eve) == {}
            body = {"add": ["mine"]}
            await eve.ask("PATCH", "/v1/deployments/m/aliases", 404, json=body)
        async with world.as_("member", "bob") as bob:
            await bob.ask("PATCH", "/v1/deployments/m/aliases", 403, json={"add": ["mine"]})
        await world.ask("PATCH", "/v1/deployments/m/aliases", json={"remove": ["gpt-4o"]})
        await chat(world, "gpt-4o", 404)


async def test_a_name_that_is_not_valid_is_refused_with_the_rule(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await deployed(world, "m")
        body = {"add": ["a b"]}
        problem = await world.ask("PATCH", "/v1/deployments/m/aliases", 422, json=body)
        assert "use letters, digits and ._:@+-/" in problem["detail"]
