"""One tenant's uploads leave room for those of others, and old ones that no job uses make way."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from hashlib import sha256
from io import BufferedIOBase, BytesIO
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from libs.common.model import JobId
from libs.common.transport.uploads import MemoryUploads
from services.api_gateway.access.shares import RECEIVING_MAX
from services.api_gateway.http import upload_room
from services.api_gateway.http.upload_room import COUNTED_BYTES_MIN
from tests.integration.gateway_world import World, gateway_world
from tests.integration.test_openai_failures import until
from tests.integration.test_openai_hostile import connected, drip, head

BUCKET: Final = 10 * COUNTED_BYTES_MIN
# 4/5 of the bucket.
SHARE: Final = 8


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as found:
        found.gateway.uploads = MemoryUploads(BUCKET)
        await found.writers.begin_term()
        yield found


def archive(number: int) -> bytes:
    return bytes([number]) * COUNTED_BYTES_MIN


def name(number: int) -> str:
    return sha256(archive(number)).hexdigest()


async def sent(world: World, number: int, status: int = 201) -> str:
    answer = await world.ask("PUT", f"/v1/uploads/{name(number)}", status, data=archive(number))
    return str(answer.get("detail", ""))


async def status(world: World, number: int) -> int:
    path = f"{world.url}/v1/uploads/{name(number)}"
    async with world.session.put(path, data=archive(number)) as answer:
        return answer.status


def put(sha256: str) -> bytes:
    """Return the head of an upload."""
    return head("content-length: 1000000", path=f"/v1/uploads/{sha256}").replace(b"POST", b"PUT", 1)


def stored(world: World, tenant: str = "default") -> list[str]:
    assert isinstance(world.gateway.uploads, MemoryUploads)
    return [sha256 for each, sha256 in world.gateway.uploads.archives if each == tenant]


async def test_a_tenant_that_uses_its_share_of_the_bucket_leaves_room_for_others(
    world: World,
) -> None:
    for number in range(SHARE):
        await sent(world, number)
        await world.submit(upload=name(number))
    assert "tenant default that active jobs use" in await sent(world, SHARE, 507)
    assert len(stored(world)) == SHARE and not world.gateway.shares.uploads.storing
    await world.ask("PUT", "/v1/tenants/physics", 201, json={})
    async with world.as_("member", "ada", "physics") as ada:
        await sent(ada, SHARE)
        assert len(stored(world, "physics")) == 1


async def test_the_walk_over_all_jobs_lets_others_in_and_sees_new_jobs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload_room, "SCAN_SLICE", 1)
    await sent(world, 0)
    ids = [JobId((await world.submit(upload=name(0)))["id"]) for _ in range(4)]
    walk = asyncio.create_task(upload_room._needed(world.gateway))
    for _ in range(2):
        await asyncio.sleep(0)
    assert not walk.done()
    cluster, late = world.gateway.cluster, JobId("late")
    first = cluster.jobs[ids[0]]
    spec = replace(first.spec, upload=name(1))
    cluster.jobs[late] = replace(first, job_id=late, seq=cluster.seq + 1, spec=spec)
    world.gateway.index.touch(late)
    assert sorted(await walk) == sorted([("default", name(0)), ("default", name(1))])


async def test_archives_that_no_live_job_uses_make_way_for_new_ones_of_their_tenant(
    world: World,
) -> None:
    await sent(world, 0)
    await world.submit(upload=name(0))
    await world.settle()
    for number in range(1, 2 * SHARE):
        await sent(world, number)
    assert name(0) in stored(world) and name(2 * SHARE - 1) in stored(world)
    assert len(stored(world)) == SHARE


async def test_a_removed_archive_gives_its_share_back(world: World) -> None:
    for number in range(SHARE):
        await sent(world, number)
        await world.ask("GET", f"/v1/uploads/{name(number)}")
    assert "muster upload rm" in await sent(world, SHARE, 507)
    await world.ask("DELETE", f"/v1/uploads/{name(0)}")
    await sent(world, SHARE)


async def test_many_small_archives_count_as_larger_ones(world: World) -> None:
    for number in range(2 * SHARE):
        data = b"%d" % number
        await world.ask("PUT", f"/v1/uploads/{sha256(data).hexdigest()}", 201, data=data)
    assert len(stored(world)) == SHARE


async def test_equal_archives_that_come_at_one_time_count_once(world: World) -> None:
    for number in range(SHARE - 1):
        await sent(world, number)
        await world.submit(upload=name(number))
    found = await asyncio.gather(*(status(world, SHARE) for _ in range(6)))
    assert set(found) <= {200, 201} and 201 in found
    assert len(stored(world)) == SHARE


async def test_an_archive_that_a_request_found_is_young_again(world: World) -> None:
    for number in range(SHARE):
        await sent(world, number)
    first = min(range(SHARE), key=name)  # all are of the same age
    await world.ask("GET", f"/v1/uploads/{name(first)}")
    await sent(world, SHARE)
    assert name(first) in stored(world) and len(stored(world)) == SHARE
    assert (await world.ask("POST", "/v1/prune", json={"keep_bytes": 0}))["uploads"] == SHARE - 1
    assert stored(world) == [name(first)]


class Meeting(MemoryUploads):
    """A store in which archives of two gateways are complete at the same time."""

    def __init__(self, bytes_max: int) -> None:
        super().__init__(bytes_max)
        self.both = asyncio.Barrier(2)

    async def put(self, tenant: str, sha256: str, archive: BufferedIOBase) -> None:
        await self.both.wait()
        await super().put(tenant, sha256, archive)


async def test_two_gateways_together_store_no_more_than_a_tenant_s_share(tmp_path: Path) -> None:
    store = Meeting(3 * COUNTED_BYTES_MIN)
    async with (
        gateway_world(tmp_path) as one,
        gateway_world(tmp_path, instance="b") as other,
    ):
        one.gateway.uploads = other.gateway.uploads = store
        await asyncio.gather(sent(one, 0), sent(other, 1))
        assert len(store.archives) == 2
        found = await asyncio.gather(status(one, 2), status(other, 3))
        assert sorted(found) == [201, 507] and len(store.archives) == 3


class Overfull(MemoryUploads):
    """A store in which another gateway stores archives while this one stores its own."""

    def __init__(self, bytes_max: int, use: Callable[[], Awaitable[object]]) -> None:
        super().__init__(bytes_max)
        self.use = use

    async def put(self, tenant: str, sha256: str, archive: BufferedIOBase) -> None:
        await super().put(tenant, sha256, archive)
        await self.use()
        for number in range(1, SHARE):
            await super().put(tenant, name(number), BytesIO(bytes([number]) * COUNTED_BYTES_MIN))


async def test_an_archive_beyond_the_share_stays_if_another_request_found_it(world: World) -> None:
    async def found() -> object:
        return await world.ask("GET", f"/v1/uploads/{name(0)}")

    async def nothing() -> None:
        return

    world.gateway.uploads = Overfull(SHARE * COUNTED_BYTES_MIN, nothing)
    await sent(world, 0, 507)
    assert name(0) not in stored(world)
    world.gateway.uploads = Overfull(SHARE * COUNTED_BYTES_MIN, found)
    await sent(world, 0)
    assert name(0) in stored(world)


async def test_one_tenant_s_slow_uploads_leave_places_for_others_and_end(tmp_path: Path) -> None:
    async with (
        gateway_world(tmp_path, model_body_ms=1_000) as world,
        AsyncExitStack() as stack,
    ):
        await world.ask("PUT", "/v1/tenants/physics", 201, json={})
        ada = await stack.enter_async_context(world.as_("member", "ada", "physics"))
        receiving = world.gateway.shares.receiving
        slow = []
        for number in range(RECEIVING_MAX):
            reader, writer = await stack.enter_async_context(connected(world))
            writer.write(put(name(number)))
            slow.append((reader, asyncio.create_task(drip(writer, 0.1))))
        await until(lambda: receiving.held == RECEIVING_MAX * 4 // 5 + 1)
        await sent(ada, RECEIVING_MAX)
        async with asyncio.timeout(10.0):
            lines = [(await reader.readline()).split()[1] for reader, _ in slow]
            while receiving.held:
                await asyncio.sleep(0.01)
        assert set(lines) == {b"408", b"429"}
        for _, dripping in slow:
            dripping.cancel()
