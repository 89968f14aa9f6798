"""A model that is shared with other tenants: who may use it, who pays, and what stays hidden."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from libs.common.state.former_models import FORMER_NS
from services.api_gateway.openai.catalogue import Deployed
from services.api_gateway.times import rfc3339
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_replica import USAGE, running
from tests.integration.openai_world import CHAT, MESSAGES, Ledger, add_replicas
from tests.integration.test_openai_adapters import ROOT, add
from tests.integration.test_openai_named_models import chat, deployed, listed

GUESTS = "/v1/deployments/m/guests"


@asynccontextmanager
async def member(world: World, user: str, tenant: str) -> AsyncIterator[World]:
    """The same gateway, asked with the key of a member of that tenant."""
    await world.ask("PUT", f"/v1/tenants/{tenant}", 201, json={})
    async with world.as_("member", user, tenant) as found:
        yield found


async def shared(world: World, *guests: str) -> None:
    await world.ask("PATCH", GUESTS, json={"add": list(guests)})


async def test_a_shared_model_is_used_and_shown_with_its_owner(tmp_path: Path) -> None:
    async with (
        gateway_world(tmp_path) as world,
        running() as replica,
        member(world, "eve", "biology") as eve,
    ):
        await deployed(world, "m", served_name="Org/M", workdir="/secret")
        await add_replicas(world, "m", replica)
        await world.ask("PATCH", "/v1/deployments/m/aliases", json={"add": ["gpt-4o"]})
        await chat(eve, "m", 404)
        await shared(world, "biology")
        assert await listed(eve) == dict.fromkeys(("m", "gpt-4o", "Org/M"), "default")
        for name in ("m", "gpt-4o", "Org/M"):
            await chat(eve, name)
        assert {json.loads(body)["model"] for body in replica.bodies} == {"Org/M"}
        whole = await world.ask("GET", "/v1/deployments/m")
        assert whole["shared_with"] == ["biology"] and whole["workdir"] == "/secret"
        assert [share["tenant"] for share in whole["queue"]["shares"]] == ["biology"]


async def test_a_guest_sees_the_state_and_nothing_of_the_owner_s_settings(tmp_path: Path) -> None:
    async with (
        gateway_world(tmp_path) as world,
        running() as replica,
        member(world, "eve", "biology") as eve,
    ):
        await deployed(world, "m", workdir="/secret", labels={"a": "secret"})
        await add_replicas(world, "m", replica)
        await world.ask("PUT", "/v1/tenants/chemistry", 201, json={})
        await shared(world, "biology", "chemistry")
        await chat(world, "m")
        await chat(eve, "m")
        shown = await eve.ask("GET", "/v1/deployments/m")
        (row,) = (await eve.ask("GET", "/v1/deployments"))["deployments"]
        for found in (shown, row):
            assert (found["state"], found["tenant"], found["ready"]) == ("ready", "default", 1)
            assert found["shared_with"] == [] and found["replicas"] == [] == found["command"]
            assert "secret" not in json.dumps(found) and "chemistry" not in json.dumps(found)
        assert [share["tenant"] for share in shown["queue"]["shares"]] == ["biology"]


async def test_an_answer_names_the_replica_to_the_owner_s_tenant_and_to_operators_alone(
    tmp_path: Path,
) -> None:
    async with (
        gateway_world(tmp_path) as world,
        running() as replica,
        member(world, "eve", "biology") as eve,
        world.as_("operator", "ops", "biology") as operator,
    ):
        await deployed(world, "m")
        await add_replicas(world, "m", replica)
        await shared(world, "biology")
        replica.wants_uuid = True
        for who, named in ((world, "m-1"), (operator, "m-1"), (eve, None)):
            for streams in (False, True):
                body = {"model": "m", "messages": MESSAGES, "stream": streams}
                async with who.session.post(who.url + CHAT, json=body) as response:
                    assert response.status == 200
                    assert response.headers.get("x-muster-replica") == named
            headers = {"x-request-id": "no-uuid"}
            async with who.session.post(who.url + CHAT, json=body, headers=headers) as response:
                assert response.status == 400
                assert ("muster logs m/1" in await response.text()) == (named is not None)


async def test_a_guest_can_change_nothing_and_reads_nothing_else(tmp_path: Path) -> None:
    async with (
        gateway_world(tmp_path) as world,
        running() as replica,
        member(world, "eve", "biology") as eve,
    ):
        await deployed(world, "m")
        await add_replicas(world, "m", replica)
        await shared(world, "*")
        for method, path in (
            ("DELETE", ""),
            ("PATCH", ""),
            ("POST", "/redeploy"),
            ("PATCH", "/guests"),
            ("PATCH", "/aliases"),
            ("PUT", "/kept/artefact"),
            ("GET", "/why"),
        ):
            body = {} if method == "GET" else {"json": {"add": ["evil"]}}
            await eve.ask(method, f"/v1/deployments/m{path}", 404, **body)
        await eve.ask("GET", "/v1/jobs/m-1", 404)
        await eve.ask("GET", "/v1/jobs/m-1/output", 404)


@pytest.mark.parametrize("streams", [False, True])
async def test_the_server_of_a_shared_model_cannot_charge_a_guest_more_than_it_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    monkeypatch.setitem(USAGE, "total_tokens", 1 << 40)
    async with (
        gateway_world(tmp_path) as world,
        running() as replica,
        member(world, "eve", "biology") as eve,
    ):
        await deployed(world, "m")
        await add_replicas(world, "m", replica)
        await shared(world, "biology")
        world.gateway.meter = ledger = Ledger(1_000)
        body = {"model": "m", "max_tokens": 50, "stream": streams}
        async with eve.session.post(eve.url + CHAT, json=body) as response:
            assert response.status == 200 and await response.read()
        assert ledger.settled == ledger.reserved
        (counts,) = world.gateway.usage.rows.values()
        assert counts.inputs + counts.outputs <= ledger.reserved[0]
        async with world.session.post(world.url + CHAT, json=body) as response:
            await response.read()
        assert ledger.settled[1] == 1 << 40  # the owner's own server says it


async def test_what_is_not_shared_stays_a_404_and_a_share_ends_at_once(tmp_path: Path) -> None:
    async with (
        gateway_world(tmp_path) as world,
        running() as replica,
        member(world, "eve", "biology") as eve,
        member(world, "kim", "chemistry") as kim,
    ):
        await deployed(world, "m")
        await add_replicas(world, "m", replica)
        await shared(world, "biology")
        await chat(eve, "m")
        await chat(kim, "m", 404)
        await kim.ask("GET", "/v1/deployments/m", 404)
        assert await listed(kim) == {}
        await world.ask("PATCH", GUESTS, json={"remove": ["biology"]})
        await chat(eve, "m", 404)
        await eve.ask("GET", "/v1/deployments/m", 404)


async def test_a_model_that_is_shared_with_all_is_for_tenants_that_come_later_too(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world, running() as replica:
        await deployed(world, "m")
        await add_replicas(world, "m", replica)
        await shared(world, "*")
        async with member(world, "new", "new-tenant") as new:
            await chat(new, "m")
            assert await listed(new) == {"m": "default"}


async def test_an_undeployed_model_is_shared_no_longer_when_it_is_deployed_again(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world, member(world, "eve", "biology") as eve:
        await deployed(world, "m")
        await shared(world, "*")
        await world.ask("DELETE", "/v1/deployments/m", 202)
        await deployed(world, "m")
        await eve.ask("GET", "/v1/deployments/m", 404)
        await chat(eve, "m", 404)


async def test_a_404_says_why_a_public_model_has_not_the_name_of_an_undeployed_one(
    tmp_path: Path,
) -> None:
    async with (
        gateway_world(tmp_path) as world,
        running() as replica,
        member(world, "eve", "biology") as eve,
    ):
        await deployed(world, "m", served_name="Org/M")
        await add_replicas(world, "m", replica)
        await shared(world, "*")
        await deployed(eve, "own", served_name="Org/M")
        await eve.ask("DELETE", "/v1/deployments/own", 202)
        why = (await chat(eve, "Org/M", 404))["error"]["message"]
        until_ns = world.gateway.cluster.models["own"].undeployed_ns + FORMER_NS
        assert "tenant biology undeployed its model 'Org/M'" in why
        assert str(rfc3339(until_ns)) in why and "to the model 'm' instead" in why
        assert "does not exist or" in (await chat(eve, "own", 404))["error"]["message"]
        await chat(eve, "m")
        assert isinstance(world.gateway.models, Deployed)
        world.gateway.models.now_ns = lambda: until_ns
        await chat(eve, "Org/M")


async def test_the_limits_of_a_request_are_those_of_the_tenant_that_sends_it(
    tmp_path: Path,
) -> None:
    async with (
        gateway_world(tmp_path) as world,
        running() as replica,
        member(world, "eve", "biology") as eve,
    ):
        await deployed(world, "m")
        await add_replicas(world, "m", replica)
        await shared(world, "biology")
        ledger = Ledger(1_000)
        reserved: list[str] = []

        class ByTenant(Ledger):
            async def reserve(self, principal: Any, model: str, tokens: int) -> Any:
                reserved.append(f"{principal.tenant} {model}")
                return await ledger.reserve(principal, model, tokens)

        world.gateway.meter = ByTenant(1_000)
        await chat(world, "m", max_tokens=5)
        await chat(eve, "m", max_tokens=5)
        assert reserved == ["default m", "biology m"]


async def test_two_tenants_take_turns_at_a_shared_model(tmp_path: Path) -> None:
    """A greedy owner does not keep a guest waiting behind all its requests."""
    async with (
        gateway_world(tmp_path, model_room_requests=1) as world,
        running() as replica,
        member(world, "eve", "biology") as eve,
    ):
        await deployed(world, "m")
        await add_replicas(world, "m", replica)
        await shared(world, "biology")

        async def ask(who: World, number: int) -> str:
            body = {"model": "m", "messages": MESSAGES, "x_delay_s": 0.02}
            await who.ask("POST", CHAT, json=body)
            order.append(f"{'eve' if who is eve else 'own'}{number}")
            return ""

        order: list[str] = []
        own = [asyncio.create_task(ask(world, number)) for number in range(12)]
        await asyncio.sleep(0.03)
        guest = [asyncio.create_task(ask(eve, number)) for number in range(3)]
        await asyncio.gather(*own, *guest)
        assert max(order.index(f"eve{number}") for number in range(3)) < 10, order


async def test_a_tenant_that_does_not_exist_is_refused_to_an_operator(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await deployed(world, "m")
        problem = await world.ask("PATCH", GUESTS, 422, json={"add": ["nix"]})
        assert "tenant nix does not exist" in problem["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", "/guests", b'{"add": ["friend"]}'),
        ("PATCH", "/aliases", b'{"add": ["gpt-4o"]}'),
        ("PATCH", "", b'{"replicas": 5}'),
        ("DELETE", "", b"{}"),
        ("PUT", "/limits/friend", b'{"tokens_per_minute": 5}'),
        ("PUT", "/kept/artefact", b'{"nodes": 1}'),
    ],
)
async def test_a_slow_request_does_not_change_a_model_that_another_tenant_has_now(
    tmp_path: Path, method: str, path: str, body: bytes
) -> None:
    """The name is checked when the body has come, and the fact names the owner that was meant."""
    go = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield body[:1]
        await go.wait()
        yield body[1:]

    url = "/v1/deployments/m"
    async with (
        gateway_world(tmp_path) as world,
        member(world, "ann", "first") as ann,
        member(world, "bob", "second") as bob,
    ):
        await deployed(ann, "m")
        late = asyncio.create_task(
            ann.session.request(
                method,
                world.url + url + path,
                data=slowly(),
                headers={"content-type": "application/json"},
            )
        )
        await asyncio.sleep(0.1)
        await ann.ask("DELETE", url, 202)
        await deployed(bob, "m")
        go.set()
        assert (await late).status == 404
        whole = await bob.ask("GET", url)
        assert (whole["state"] != "undeployed", whole["wanted"]) == (True, 1)
        assert whole["shared_with"] == whole["aliases"] == []


@pytest.mark.attack
async def test_a_guest_whose_requests_were_joined_reads_neither_replica_nor_folder(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world, running() as replica:
        replica.base = "m"
        batching = {"items_max": 2, "wait_ms": 10_000}
        await deployed(world, "m", adapters=ROOT, batching=batching)
        await add_replicas(world, "m", replica)
        await add(world, "sql")
        replica.unloadable.add("/lora/sql")

        async def pair(who: World) -> list[dict[str, Any]]:
            body = {"model": "m:sql", "input": "a"}
            asked = [who.ask("POST", "/v1/embeddings", 502, json=body) for _ in range(2)]
            return [each["error"] for each in await asyncio.gather(*asked)]

        for error in await pair(world):
            assert "replica m-1 could not load it" in error["message"]
        async with member(world, "eve", "biology") as eve:
            await shared(world, "biology")
            errors = await pair(eve)
        for error in errors:
            assert error["code"] == "adapter_failed" and "'sql' of model 'm'" in error["message"]
            assert "/lora" not in error["message"] and "m-1" not in error["message"]
