"""What a restore records for the agents: a life of its own, even of a backup restored before."""

from pathlib import Path

from libs.common.state.cluster import Cluster, present_life
from libs.common.transport import snapshot_store
from libs.common.transport.connection_nats import connect
from libs.common.transport.objects_nats import NatsObjects
from libs.common.transport.signed_snapshots import SignedSnapshots
from libs.embedded import identity, servers
from tests.integration.test_backup import World, seed_of, start_servers_at
from tests.integration.test_backup import world as world


async def state_of(folder: Path) -> Cluster:
    """Return the state of a restored cluster, from the snapshot in its state directory."""
    port = servers.free_ports(1)[0]
    server = start_servers_at(folder, port)
    client = await connect([f"nats://127.0.0.1:{port}"], "audit", seed_of(folder, "audit"))
    try:
        trimmer = identity.public_key(folder / "keys", "trimmer")
        objects = SignedSnapshots(NatsObjects(client), seed_of(folder, "audit"), trimmer)
        found = await snapshot_store.load(objects, snapshot_store.BASE_OBJECT)
        assert found is not None
        return found
    finally:
        await client.close()
        server.terminate()
        server.wait()


async def test_the_same_backup_restored_twice_gives_two_lives(world: World) -> None:
    await world.submit("j1")
    await world.backup()
    states = [await state_of(await world.restore(name)) for name in ("first", "second")]
    assert [state.life for state in states] == [1, 1]
    assert len({present_life(state) for state in states}) == 2
