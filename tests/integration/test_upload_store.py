"""The bucket of uploads on a real server, and its twin: one suite for both."""

import asyncio
import io
import threading
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from nats.js.errors import APIError

from libs.common.errors import Refused, Unavailable
from libs.common.transport.connection_nats import connect
from libs.common.transport.uploads import PIECE_BYTES, MemoryUploads, UploadStore
from libs.common.transport.uploads_nats import OVERTAKEN_S, NatsUploads
from libs.embedded.permissions import Fleet
from libs.embedded.servers import Servers, start_servers

DATA = bytes(range(256)) * (5 * PIECE_BYTES // 512)
HASH = sha256(DATA).hexdigest()
# Changes of two gateways at once. Most of them meet while the servers store one of them.
ROUNDS = 8


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    started = start_servers(
        tmp_path_factory.mktemp("nats"),
        fleet=Fleet(nodes=("1",), gateways=("a",)),
        log_bytes=64 << 20,
    )
    yield started
    started.stop()


@pytest.fixture(params=["memory", "nats"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[UploadStore]:
    """As a gateway's own key reaches it."""
    if request.param == "memory":
        yield MemoryUploads()
        return
    servers: Servers = request.getfixturevalue("servers")
    client = await connect(servers.urls, "gateway-a", servers.seed("gateway-a"))
    made = NatsUploads(client, 1, 64 << 20)
    yield made
    for each in await made.listed():
        await made.remove(each.tenant, each.sha256)
    await client.close()


async def whole(store: UploadStore, tenant: str, name: str) -> bytes:
    found, mark = b"", 0
    while (piece := await store.piece(tenant, name, mark)) is not None:
        assert piece.mark > mark and len(piece.data) <= PIECE_BYTES
        found, mark = found + piece.data, piece.mark
    return found


async def test_before_the_first_upload_there_is_nothing_to_list_find_or_remove(
    store: UploadStore,
) -> None:
    assert await store.listed() == []
    assert await store.find("default", "0" * 64) is None
    assert await store.piece("default", "0" * 64, 0) is None
    await store.remove("default", "0" * 64)


async def test_stored_upload_is_found_by_its_own_tenant_only(
    store: UploadStore,
) -> None:
    await store.put("physics", HASH, io.BytesIO(DATA))
    found = await store.find("physics", HASH)
    assert found is not None and (found.tenant, found.sha256, found.size_bytes) == (
        "physics",
        HASH,
        len(DATA),
    )
    assert found.sent_at > "2025"
    assert await whole(store, "physics", HASH) == DATA
    assert (
        await store.find("default", HASH) is None and await store.piece("default", HASH, 0) is None
    )
    assert await store.find("physics", "0" * 64) is None


async def test_the_list_contains_the_uploads_of_all_tenants(store: UploadStore) -> None:
    assert await store.listed() == []
    for tenant in ("physics", "default"):
        await store.put(tenant, HASH, io.BytesIO(DATA))
    assert [(each.tenant, each.sha256, each.size_bytes) for each in await store.listed()] == [
        ("default", HASH, len(DATA)),
        ("physics", HASH, len(DATA)),
    ]


async def test_removed_upload_is_gone_and_may_be_sent_again(store: UploadStore) -> None:
    await store.put("default", HASH, io.BytesIO(DATA))
    await store.remove("default", HASH)
    await store.remove("default", HASH)
    assert await store.find("default", HASH) is None and await whole(store, "default", HASH) == b""
    await store.put("default", HASH, io.BytesIO(DATA))
    await store.put("default", HASH, io.BytesIO(DATA))
    assert await whole(store, "default", HASH) == DATA


async def test_a_full_bucket_takes_nothing_and_keeps_no_part_of_what_it_did_not_take(
    servers: Servers,
) -> None:
    client = await connect(servers.urls, "gateway-a", servers.seed("gateway-a"))
    store = NatsUploads(client, 1, 64 << 20)
    await store.put("default", HASH, io.BytesIO(DATA))
    with pytest.raises(Refused, match="is full"):
        await store.put("default", "f" * 64, io.BytesIO(bytes(64 << 20)))
    info = await store.js.stream_info("OBJ_UPLOADS")
    assert info.state.bytes < 2 * len(DATA) and await store.find("default", "f" * 64) is None
    assert await whole(store, "default", HASH) == DATA
    await store.remove("default", HASH)
    await client.close()


async def test_pieces_that_a_killed_gateway_left_are_swept_once_they_are_old(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(servers.urls, "gateway-a", servers.seed("gateway-a"))
    store = NatsUploads(client, 1, 64 << 20)
    await store.put("default", HASH, io.BytesIO(DATA))
    await store.js.publish("$O.UPLOADS.C.abandoned", DATA[:PIECE_BYTES])
    for again in (False, True):  # young, and old but just looked for
        monkeypatch.setattr("libs.common.transport.uploads_nats.ABANDONED_S", 0 if again else 60)
        store.sweep_at = store.sweep_at if again else 0.0
        await store.put("physics", HASH, io.BytesIO(DATA))
        assert await pieces(store, "abandoned") == 1
    store.sweep_at = 0.0
    await store.put("physics", HASH, io.BytesIO(DATA))
    assert await pieces(store, "abandoned") == 0
    assert (
        await whole(store, "default", HASH) == DATA and await whole(store, "physics", HASH) == DATA
    )
    for tenant in ("default", "physics"):
        await store.remove(tenant, HASH)
    await client.close()


async def pieces(store: NatsUploads, nuid: str) -> int:
    subject = f"$O.UPLOADS.C.{nuid}"
    found = (
        await store.js.stream_info("OBJ_UPLOADS", subjects_filter=subject)
    ).state.subjects or {}
    return sum(found.values())


class Late(io.BytesIO):
    """An archive whose reading waits until the test says so."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.begun = threading.Event()
        self.go = threading.Event()

    def readinto(self, buffer: Any) -> int:
        self.begun.set()
        self.go.wait(10)
        return super().readinto(buffer)


@pytest.mark.parametrize("removed", [False, True])
async def test_equal_archives_that_two_gateways_store_at_once_leave_the_pieces_of_one(
    servers: Servers, removed: bool
) -> None:
    client = await connect(servers.urls, "gateway-a", servers.seed("gateway-a"))
    store, other = (NatsUploads(client, 1, 64 << 20) for _ in range(2))
    late = Late(DATA)
    putting = asyncio.create_task(other.put("default", HASH, late))
    await asyncio.to_thread(late.begun.wait, 10)
    await store.put("default", HASH, io.BytesIO(DATA))
    if removed:
        await store.remove("default", HASH)
    late.go.set()
    await putting
    assert await whole(store, "default", HASH) == DATA
    assert await pieces(store, "*") == -(-len(DATA) // PIECE_BYTES)
    await store.remove("default", HASH)
    assert await pieces(store, "*") == 0
    await client.close()


async def test_a_removal_at_the_same_moment_as_a_put_leaves_no_pieces(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(servers.urls, "gateway-a", servers.seed("gateway-a"))
    store, other = (NatsUploads(client, 1, 64 << 20) for _ in range(2))
    await store.put("default", HASH, io.BytesIO(DATA))
    publish, crossed = other.js.publish, 0

    async def crossing(*args: Any, **kwargs: Any) -> Any:
        nonlocal crossed
        crossed += 1
        if crossed == 1:
            await store.put("default", HASH, io.BytesIO(DATA))
        return await publish(*args, **kwargs)

    monkeypatch.setattr(other.js, "publish", crossing)
    await other.remove("default", HASH)
    assert crossed == 2 and await store.find("default", HASH) is None
    assert await pieces(store, "*") == 0
    await client.close()


@pytest.mark.parametrize("change", ["put", "remove"])
async def test_a_change_waits_until_several_servers_have_stored_another_one(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    client = await connect(servers.urls, "gateway-a", servers.seed("gateway-a"))
    store, other = (NatsUploads(client, 1, 64 << 20) for _ in range(2))
    if change == "remove":
        await store.put("default", HASH, io.BytesIO(DATA))
    publish, storing = other.js.publish, None

    async def slow_change() -> None:
        await asyncio.sleep(OVERTAKEN_S)
        if change == "put":
            await store.put("default", HASH, io.BytesIO(DATA))
        else:
            await store.remove("default", HASH)

    async def publish_beside(subject: str, *args: Any, **kwargs: Any) -> Any:
        """Answer like one of several servers that stores another change of the subject."""
        nonlocal storing
        if ".M." not in subject:
            return await publish(subject, *args, **kwargs)
        storing = storing or asyncio.create_task(slow_change())
        raise APIError(code=400, err_code=10164, description="wrong last sequence")

    monkeypatch.setattr(other.js, "publish", publish_beside)
    if change == "put":
        await other.put("default", HASH, io.BytesIO(DATA))
    else:
        await other.remove("default", HASH)
    assert storing is not None
    await storing
    assert (await whole(store, "default", HASH) == DATA) == (change == "put")
    await store.remove("default", HASH)
    assert await pieces(store, "*") == 0
    await client.close()


@pytest.fixture
def three_servers(tmp_path: Path) -> Iterator[Servers]:
    started = start_servers(tmp_path, 3, Fleet(gateways=("a", "b")), log_bytes=64 << 20)
    yield started
    started.stop()


async def test_gateways_at_several_servers_change_one_archive_at_the_same_moment(
    three_servers: Servers,
) -> None:
    clients = [
        await connect([url], name, three_servers.seed(name))
        for url, name in zip(three_servers.urls[:2], ("gateway-a", "gateway-b"), strict=True)
    ]
    stores = [NatsUploads(client, 3, 64 << 20) for client in clients]
    async with asyncio.timeout(60):
        while True:
            try:
                await stores[0].put("default", HASH, io.BytesIO(DATA))
                break
            except Unavailable:  # the servers have no leader yet
                await asyncio.sleep(0.2)
    for number in range(ROUNDS):
        data = bytes([number])
        name = sha256(data).hexdigest()
        await asyncio.gather(*(store.put("t", name, io.BytesIO(data)) for store in stores))
        await asyncio.gather(*(store.remove("t", name) for store in stores))
    assert [each.sha256 for each in await stores[0].listed()] == [HASH]
    assert await pieces(stores[0], "*") == -(-len(DATA) // PIECE_BYTES)
    for client in clients:
        await client.close()


async def test_a_node_reaches_none_of_it_but_through_a_gateway(
    servers: Servers, tmp_path: Path
) -> None:
    client = await connect(servers.urls, "node-1", servers.seed("node-1"))
    for subject in (
        "$JS.API.DIRECT.GET.OBJ_UPLOADS",
        "$JS.API.STREAM.INFO.OBJ_UPLOADS",
        "$JS.API.STREAM.PURGE.OBJ_UPLOADS",
    ):
        with pytest.raises(Exception, match=r"(?i)timeout|no responders"):
            await client.request(subject, b'{"seq":1}', timeout=0.2)
    await client.close()


async def test_the_space_is_that_of_all_uploads_whoever_stored_or_removed_them(
    store: UploadStore, request: pytest.FixtureRequest
) -> None:
    assert (await store.space()).uploads == []
    await store.put("physics", HASH, io.BytesIO(DATA))
    await store.put("default", HASH, io.BytesIO(DATA))
    assert await sizes(store) == {"physics": len(DATA), "default": len(DATA)}
    if isinstance(store, NatsUploads):
        servers: Servers = request.getfixturevalue("servers")
        client = await connect(servers.urls, "gateway-a", servers.seed("gateway-a"))
        other = NatsUploads(client, 1, 64 << 20)
        await other.remove("physics", HASH)
        await other.put("third", HASH, io.BytesIO(DATA))
        assert (await other.space()).bytes_max == 64 << 20
        assert await sizes(other) == await sizes(store)
        await client.close()
        assert await sizes(store) == {"default": len(DATA), "third": len(DATA)}
    for each in await store.listed():
        await store.remove(each.tenant, each.sha256)
    assert await sizes(store) == {}


async def test_a_long_log_is_read_in_parts_that_lose_nothing(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("libs.common.transport.uploads_nats.PART_MIN", 2)
    client = await connect(servers.urls, "gateway-a", servers.seed("gateway-a"))
    store, other = (NatsUploads(client, 1, 64 << 20) for _ in range(2))
    for number in range(12):
        await store.put(f"t{number}", HASH, io.BytesIO(b"x" * number))
    await store.remove("t3", HASH)
    expected = {f"t{number}": number for number in range(12) if number != 3}
    assert await sizes(store) == await sizes(other) == expected
    for tenant in expected:
        await store.remove(tenant, HASH)
    assert await sizes(other) == {}
    await client.close()


async def sizes(store: UploadStore) -> dict[str, int]:
    return {each.tenant: each.size_bytes for each in (await store.space()).uploads}
