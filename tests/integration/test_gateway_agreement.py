"""GET /v1/cluster/verify over real HTTP, with a real scheduler that records its hashes."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common import subjects
from libs.common.agreement.questions import naming_keys
from libs.common.errors import Diverged
from tests.integration.gateway_world import World, gateway_world
from tests.integration.test_gateway_locks import deciding
from tests.unit.test_agreement import submitted

EVERY = 8


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with (
        gateway_world(tmp_path, state_hash_every=EVERY) as found,
        deciding(found, state_hash_every=EVERY),
    ):
        yield found


async def recorded(world: World, after: int = 0) -> None:
    """Record jobs, as another gateway, until the leader has recorded a hash of a commit after this
    one, or the gateway has stopped.
    """
    other = subjects.gateway("other")
    while world.gateway.cluster.state_hash.seq <= after and not world.running.done():
        await world.writers.write(other, submitted(f"other-{after}-{time.monotonic_ns()}"))
        await asyncio.sleep(0.02)


async def test_before_the_first_hash_there_is_nothing_to_compare(world: World) -> None:
    assert (
        "MUSTER_STATE_HASH_EVERY" in (await world.ask("GET", "/v1/cluster/verify", 409))["detail"]
    )


async def test_members_that_hold_the_same_state_agree(world: World) -> None:
    await recorded(world)
    found = await world.ask("GET", "/v1/cluster/verify")
    assert found["agrees"] and found["seq"] % EVERY == 0
    assert [(member["name"], member["state"]) for member in found["members"]] == [
        ("the log's record", "agrees"),
        ("gateway a", "agrees"),
        ("scheduler s1", "agrees"),
    ]


async def test_a_hash_of_another_version_is_not_compared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await recorded(world)
    monkeypatch.setattr("services.api_gateway.http.agreement.schema", lambda: "of a later version")
    found = await world.ask("GET", "/v1/cluster/verify", 409)
    assert "recorded by another version" in found["detail"]


async def test_a_gateway_with_another_state_stops_and_names_what_differs(world: World) -> None:
    await recorded(world)
    job = (await world.submit())["id"]
    await world.settle()
    world.gateway.cluster.port_last += 1
    await recorded(world, after=world.gateway.cluster.seq)
    assert job
    with pytest.raises(Diverged, match="port_last differ"):
        await world.running


async def test_a_member_that_stops_names_the_first_entry_that_differs(world: World) -> None:
    await recorded(world)
    job = (await world.submit())["id"]
    await world.settle()
    world.gateway.cluster.jobs[job].charged = 9
    tree = world.gateway.agreement.tree
    assert tree is not None
    tree.stale["jobs"][job] = None
    named = naming_keys(world.running, world.bus, world.gateway.agreement)
    await recorded(world, after=world.gateway.cluster.seq)
    with pytest.raises(Diverged, match=f"The first entry that differs is {job} of jobs"):
        await named


async def test_verify_names_the_first_entry_that_differs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libs.common.agreement.follower.check", lambda recorded, own: None)
    await recorded(world)
    job = (await world.submit())["id"]
    await world.settle()
    world.gateway.cluster.jobs[job].charged = 9
    tree = world.gateway.agreement.tree
    assert tree is not None
    tree.stale["jobs"][job] = None
    await recorded(world, after=world.gateway.cluster.seq)
    found = await world.ask("GET", "/v1/cluster/verify")
    assert not found["agrees"]
    (differs,) = [member for member in found["members"] if member["state"] == "differs"]
    assert (differs["name"], differs["parts"], differs["key"]) == ("gateway a", ["jobs"], job)


async def test_only_operators_verify(world: World) -> None:
    async with world.as_("member", "ada") as ada:
        await ada.ask("GET", "/v1/cluster/verify", 403)
