"""/v1/notifications: who may do what, what is shown, and where nothing is sent."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.common.facts import AnyFact, size_of
from services.api_gateway.http import notifications
from services.api_gateway.notify.body import Sealed, vault_name
from services.api_gateway.problems import Problem
from tests.integration.gateway_world import World
from tests.integration.notify_world import (
    add,
    notify_world,
    receiver,
    relay,
    server_context,
    until,
)

TEST = "/v1/notifications/{}/test"
HINT = "MUSTER_NOTIFY_NETWORKS"


async def result_of(world: Any, name: str) -> dict[str, Any]:
    answer: dict[str, Any] = await world.ask("POST", TEST.format(name), json={})
    return answer


@asynccontextmanager
async def tenant_red(world: World) -> AsyncIterator[None]:
    await world.ask("PUT", "/v1/tenants/red", 201, json={})
    yield


async def test_addresses_and_keys_are_shown_once_and_recorded_never(tmp_path: Path) -> None:
    async with receiver() as hook, notify_world(tmp_path) as world:
        made = await add(world, "hook", webhook=hook.url)
        key = made["key"]
        assert key.startswith("whsec_")
        changed = await add(world, "hook", 200, kinds=["job.*"])
        moved = await add(world, "hook", 200, webhook=hook.url + "/other")
        assert (changed["key"], moved["key"], moved["version"]) == ("", "", 3)
        listed = json.dumps(await world.ask("GET", "/v1/notifications"))
        facts = str(await world.said())
        for text in (listed, facts):
            assert "SECRETPATH" not in text and key not in text
        assert (await result_of(world, "hook")) == {"accepted": True, "detail": ""}
        await world.ask("POST", TEST.format("hook"), 429, json={})
        await until(lambda: len(hook.got) == 1)
        assert all(size_of(fact) < 4_096 for fact in await world.said())


async def test_nothing_goes_to_addresses_that_are_not_public(tmp_path: Path) -> None:
    async with receiver() as hook, notify_world(tmp_path, notify_networks="") as world:
        port = hook.url.split(":")[2].split("/")[0]
        for name, host in (
            ("name", "localhost"),
            ("literal", "127.0.0.1"),
            ("six", "[::1]"),
            ("mapped", "[::ffff:127.0.0.1]"),
        ):
            for scheme in ("http", "https"):
                await add(
                    world,
                    f"{name}-{scheme}",
                    webhook=f"{scheme}://{host}:{port}/",
                )
                result = await result_of(world, f"{name}-{scheme}")
                assert not result["accepted"]
                assert HINT in result["detail"], (name, result)
        for host in ("127.1", "2130706433", "0x7f000001"):
            await add(world, "number", 422, webhook=f"https://{host}:{port}/")
        assert hook.tries == 0


async def test_redirects_are_not_followed_and_answers_not_shown(tmp_path: Path) -> None:
    async with receiver() as hook, receiver() as inner, notify_world(tmp_path) as world:
        hook.status, hook.headers = 302, {"location": inner.url}
        await add(world, "hook", webhook=hook.url)
        result = await result_of(world, "hook")
        assert result["detail"] == "the receiver answered 302: redirects are not followed"
        assert inner.tries == 0


async def test_a_webhook_over_tls_is_checked(tmp_path: Path) -> None:
    context = server_context(tmp_path)
    authority = str(tmp_path / "authority.pem")
    async with receiver(context) as hook:
        async with notify_world(tmp_path, notify_ca_file=authority) as world:
            await add(world, "hook", webhook=hook.url)
            assert (await result_of(world, "hook"))["accepted"]
        async with notify_world(tmp_path) as world:
            await add(world, "hook", webhook=hook.url)
            assert "TLS failed" in (await result_of(world, "hook"))["detail"]


async def test_a_member_has_its_own_and_sees_its_tenants(tmp_path: Path) -> None:
    async with receiver() as hook, notify_world(tmp_path) as world:
        await add(world, "ops", webhook=hook.url, tenants=["*"], kinds=["node."])
        async with (
            tenant_red(world),
            world.as_("member", "ada", "red") as ada,
            world.as_("member", "bob", "red") as bob,
            world.as_("viewer", "eve", "red") as eve,
        ):
            await add(ada, "mine", webhook=hook.url, own=True)
            await add(bob, "mine", 403, failures=True)
            await add(ada, "all", 403, webhook=hook.url, tenants=["*"])
            await add(eve, "hers", 403, webhook=hook.url)
            for reader in (ada, bob, eve):
                found = (await reader.ask("GET", "/v1/notifications"))["notifications"]
                assert [each["name"] for each in found] == ["mine"]
            await bob.ask("DELETE", "/v1/notifications/mine", 403)
            await ada.ask("DELETE", "/v1/notifications/ops?tenant=default", 404)
        found = (await world.ask("GET", "/v1/notifications"))["notifications"]
        assert [each["name"] for each in found] == ["ops", "mine"]
        await world.ask("DELETE", "/v1/notifications/mine?tenant=red", 204)


async def test_mail_goes_only_to_domains_that_the_operator_allows(tmp_path: Path) -> None:
    async with (
        relay(tmp_path) as (mails, settings),
        notify_world(tmp_path, **settings) as world,
        tenant_red(world),
        world.as_("member", "ada", "red") as ada,
    ):
        await add(ada, "mail", mail="ann@example.org")
        result = await result_of(ada, "mail")
        assert "MUSTER_NOTIFY_MAIL_DOMAINS" in result["detail"]
        await add(world, "mail", mail="ann@example.org", tenants=["*"])
        assert (await result_of(world, "mail"))["accepted"]
        assert len(mails.got) == 1
    async with notify_world(tmp_path) as world:
        await add(world, "mail", mail="ann@example.org")
        assert "MUSTER_SMTP_HOST" in (await result_of(world, "mail"))["detail"]


async def test_an_unknown_destination_is_not_found(tmp_path: Path) -> None:
    async with notify_world(tmp_path) as world:
        path = "None"
        await world.ask("DELETE", f"/v1/notifications/{path}", 404)
        await world.ask("POST", TEST.format(path), 404, json={})


async def test_an_address_counts_only_with_its_own_fact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "TEST_EVERY_S", 0)

    async def full(*facts: AnyFact) -> int:
        raise Problem(429, "no room")

    async with receiver() as first, receiver() as second, notify_world(tmp_path) as world:
        await add(world, "hook", webhook=first.url)
        with monkeypatch.context() as patched:
            patched.setattr(world.gateway, "record", full)
            await add(world, "hook", 429, webhook=second.url)
        assert (await result_of(world, "hook"))["accepted"]
        assert (first.tries, second.tries) == (1, 0)
        # Another request stores its values, and its fact comes before the last one.
        vault, name = world.gateway.vault, vault_name("hook")
        theirs = msgspec.json.encode(Sealed(second.url, id="theirs")).decode()
        await vault.put("default", name, theirs)
        assert "is not the one that was set last" in (await result_of(world, "hook"))["detail"]
        assert second.tries == 0
        await world.ask("DELETE", "/v1/notifications/hook", 204)
        assert await vault.get("default", name) == theirs
        await add(world, "hook", webhook=first.url)
        await world.ask("DELETE", "/v1/notifications/hook", 204)
        assert await vault.get("default", name) is None
