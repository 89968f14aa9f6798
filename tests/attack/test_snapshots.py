"""A gateway's real key against the snapshots from which services start: no service starts from a
forged state.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client

from libs.common.settings.settings import Settings
from libs.common.state.cluster import Cluster
from libs.common.transport import signed_snapshots, snapshot, snapshot_store
from libs.common.transport.connection_nats import connect
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.common.transport.objects_nats import NatsObjects
from libs.common.transport.snapshot_store import BASE_OBJECT, CLUSTER_OBJECT, SnapshotStore
from libs.embedded import identity
from libs.embedded.permissions import Fleet
from libs.embedded.servers import Servers, start_servers

LOG_BYTES = 64 << 20
READERS = ("scheduler", "quota", "audit", "gateway-b", "trimmer")


class World:
    def __init__(self, servers: Servers) -> None:
        self.servers = servers
        self.clients: dict[str, Client] = {}

    def settings(self, name: str) -> Settings:
        keys = self.servers.keys
        return Settings(
            nkey_seed_file=str(identity.seed_file(keys, name)),
            trimmer_key_file=str(identity.public_file(keys, "trimmer")),
        )

    async def bare(self, name: str) -> NatsObjects:
        """The bucket as that process's key reaches it, without any check."""
        if name not in self.clients:
            self.clients[name] = await connect(self.servers.urls, name, self.servers.seed(name))
        return NatsObjects(self.clients[name])

    async def store(self, name: str) -> SnapshotStore:
        return signed_snapshots.of(self.settings(name), await self.bare(name))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    servers = start_servers(
        tmp_path, fleet=Fleet(nodes=("1",), gateways=("a", "b")), log_bytes=LOG_BYTES
    )
    found = World(servers)
    scheduler = await connect(servers.urls, "scheduler", servers.seed("scheduler"))
    await create_stream(scheduler, 1, LOG_BYTES // 2)
    yield found
    await scheduler.close()
    for client in found.clients.values():
        await client.close()
    servers.stop()


def state(seq: int) -> Cluster:
    return Cluster(cluster_id="forged", seq=seq)


async def test_no_service_starts_from_a_state_that_a_gateway_stored(world: World) -> None:
    forged = snapshot.encode(state(7))
    hostile, signed = await world.bare("gateway-a"), await world.store("gateway-a")
    for name in (CLUSTER_OBJECT, BASE_OBJECT):
        await hostile.put(name, forged)
        for reader in READERS:
            await hostile.put(f"{name}.{identity.public_key(world.servers.keys, reader)}", forged)
        await _refused(world)
        await signed.put(name, forged)
        await _refused(world)


async def test_an_object_that_a_gateway_signed_under_another_name_is_rejected(world: World) -> None:
    """A signed object is copied to where another reader looks."""
    hostile, signed = await world.bare("gateway-a"), await world.store("gateway-a")
    await signed.put(CLUSTER_OBJECT, snapshot.encode(state(7)))
    own = await hostile.get(
        f"{CLUSTER_OBJECT}.{identity.public_key(world.servers.keys, 'gateway-a')}"
    )
    assert own is not None
    for place in (
        BASE_OBJECT,
        *(
            f"{CLUSTER_OBJECT}.{identity.public_key(world.servers.keys, reader)}"
            for reader in READERS
        ),
    ):
        await hostile.put(place, own)
    await _refused(world)


async def test_the_trimmer_s_base_is_taken_by_all_and_a_gateway_s_own_snapshot_by_itself(
    world: World,
) -> None:
    await (await world.store("trimmer")).put(BASE_OBJECT, snapshot.encode(state(3)))
    await (await world.store("gateway-a")).put(CLUSTER_OBJECT, snapshot.encode(state(5)))
    for reader in READERS:
        assert (await snapshot_store.newest(await world.store(reader))).seq == 3
    assert (await snapshot_store.newest(await world.store("gateway-a"))).seq == 5


async def test_a_changed_byte_of_a_signed_base_makes_it_none(world: World) -> None:
    await (await world.store("trimmer")).put(BASE_OBJECT, snapshot.encode(state(3)))
    hostile = await world.bare("gateway-a")
    stored = await hostile.get(BASE_OBJECT)
    assert stored is not None
    for at in (0, 40, 90, len(stored) - 1):
        await hostile.put(BASE_OBJECT, stored[:at] + bytes([stored[at] ^ 1]) + stored[at + 1 :])
        assert await (await world.store("scheduler")).get(BASE_OBJECT) is None


async def test_a_service_that_knows_no_trimmer_takes_no_base(world: World) -> None:
    await (await world.store("trimmer")).put(BASE_OBJECT, snapshot.encode(state(3)))
    blind = Settings(nkey_seed_file=str(identity.seed_file(world.servers.keys, "scheduler")))
    assert await signed_snapshots.of(blind, await world.bare("scheduler")).get(BASE_OBJECT) is None


async def _refused(world: World) -> None:
    for reader in READERS:
        store = await world.store(reader)
        assert (await snapshot_store.newest(store)).seq == 0
        assert (await snapshot_store.begin(JetStreamLog(world.clients[reader]), store)).seq == 0
