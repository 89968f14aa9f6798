"""GET /v1/cluster/verify over real HTTP, with a real scheduler that records its hashes."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.agreement.questions import naming_keys
from libs.common.errors import Diverged
from libs.common.folds import job_fold
from libs.common.transport import snapshot_store
from libs.common.transport.snapshot_store import MemorySnapshots
from services.api_gateway.views.snapshots import Snapshots, encode
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


async def test_a_hash_of_another_build_is_not_compared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await recorded(world)
    monkeypatch.setattr("services.api_gateway.http.agreement.fingerprint", lambda: "another build")
    found = await world.ask("GET", "/v1/cluster/verify", 409)
    assert "recorded by another build" in found["detail"]


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


async def test_a_gateway_that_starts_from_a_snapshot_agrees_after_jobs_left_the_state(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_fold, "ENDED_JOBS_KEPT", 1)
    jobs = [(await world.submit())["id"] for _ in range(4)]
    for job in jobs:
        await world.writers.write(subjects.QUOTA, f.JobRejected(job_id=job, reason="no room"))
    await recorded(world, after=world.gateway.cluster.seq)
    store = MemorySnapshots()
    await Snapshots(store, 0).save(encode(world.gateway.cluster, world.gateway.history))
    changed = {"instance": "b", "store": store, "stream": world.log.stream}
    async with gateway_world(tmp_path, state_hash_every=EVERY, **changed) as other:
        first = other.gateway.cluster.seq
        while other.gateway.cluster.state_hash.seq <= first + EVERY and not other.running.done():
            await recorded(world, after=world.gateway.cluster.seq)
            await other.settle()
        assert not other.running.done()
        assert other.gateway.cluster.state_hash.seq in other.gateway.agreement.kept


@pytest.mark.parametrize("loaded", [True, False])
async def test_a_gateway_that_diverged_deletes_only_the_snapshot_that_it_loaded(
    world: World, loaded: bool
) -> None:
    await recorded(world)
    gateway = world.gateway
    snapshots, pair = gateway.snapshots, encode(gateway.cluster, gateway.history)
    await snapshots.save(pair)
    snapshots.stored_seq = pair.seq if loaded else 1
    gateway.cluster.port_last += 1
    await recorded(world, after=gateway.cluster.seq)
    with pytest.raises(Diverged):
        await snapshots.distrusted_after(world.running)
    assert (await snapshot_store.newest(snapshots.store)).seq == (0 if loaded else pair.seq)


async def test_only_operators_verify(world: World) -> None:
    async with world.as_("member", "ada") as ada:
        await ada.ask("GET", "/v1/cluster/verify", 403)
