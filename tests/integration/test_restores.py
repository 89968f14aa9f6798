"""A restore begins a new life of the cluster, also if the same backup was restored before. It
records how long agents may still hold the lease of a planned stop.
"""

from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.state.cluster import Cluster, present_life
from libs.common.transport import snapshot_store
from libs.common.transport.connection_nats import connect
from libs.common.transport.objects_nats import NatsObjects
from libs.common.transport.signed_snapshots import SignedSnapshots
from libs.embedded import identity, servers
from services.audit.backup.building import Building
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


@pytest.mark.parametrize(
    ("setting_ms", "backup_ms", "ended", "waits_ms"),
    [
        (5_000, 0, False, 900_000),
        (1_200_000, 0, False, 1_200_000),
        (5_000, 1_500_000, False, 1_500_000),
        (1_200_000, 1_500_000, True, 0),
    ],
)
async def test_the_longest_lease_of_a_planned_stop_that_is_known_decides_the_wait(
    world: World, setting_ms: int, backup_ms: int, ended: bool, waits_ms: int
) -> None:
    """A stop of long ago recorded 900 s; the setting of the restore's own shell may be another."""
    stops = [f.LeaseExtended(duration_ms=duration_ms) for duration_ms in (900_000, 0, 60_000)]
    await world.record("scheduler", subjects.SCHEDULER, *stops)
    world.stop_lease_ms = backup_ms
    await world.backup()
    building = Building(
        await world.contents(),
        world.folder / "restored",
        setting_ms,
        leases_ended=ended,
        now_ns=1,
        say=lambda text: None,
    )
    assert (await building.run()).extension_ms == building.extension_ms == waits_ms
