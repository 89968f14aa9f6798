"""A restore fills the archive that MUSTER_AUDIT_URL names, or refuses one of another history."""

from pathlib import Path

import pytest

from libs.common.errors import Refused
from libs.common.transport.log import Entry
from services.audit.backup.building import Building
from services.audit.store.store import Store
from tests.integration.test_backup import World
from tests.integration.test_backup import world as world


async def restore(world: World, url: str) -> Path:
    """Restore the backup with the archive in this database."""
    state = world.folder / "restored"
    building = Building(
        contents=await world.contents(),
        state=state,
        stop_lease_ms=0,
        leases_ended=True,
        now_ns=1,
        say=lambda text: None,
        audit_url=url,
    )
    await building.run()
    return state


def filled(url: str, entries: list[Entry]) -> None:
    store = Store(url)
    store.migrate()
    store.append(entries)
    store.close()


async def archived(world: World) -> list[Entry]:
    return [entry async for batch in (await world.contents()).commits() for entry in batch]


async def test_a_restore_fills_the_named_database(world: World, url: str) -> None:
    await world.submit("j1", "j2")
    manifest = await world.backup()
    state = await restore(world, url)
    store = Store(url)
    head = store.head_now()
    store.close()
    assert head is not None
    assert (head.seq, head.hash) == (manifest.seq, manifest.chain)
    assert not (state / "services/audit/audit.db").exists()


async def test_a_restore_goes_on_with_a_database_that_a_killed_one_began(
    world: World, url: str
) -> None:
    await world.submit("j1", "j2")
    manifest = await world.backup()
    filled(url, (await archived(world))[:2])
    await restore(world, url)
    store = Store(url)
    head = store.head_now()
    store.close()
    assert head is not None and head.hash == manifest.chain


async def test_an_archive_with_commits_after_the_backup_is_refused(world: World, url: str) -> None:
    await world.submit("j1")
    manifest = await world.backup()
    last = (await archived(world))[-1]
    filled(url, [*await archived(world), Entry(manifest.seq + 1, last.subject, last.data)])
    with pytest.raises(Refused, match=f"up to {manifest.seq + 1}, and the backup ends at"):
        await restore(world, url)
    assert not (world.folder / "restored").exists()


async def test_an_archive_of_another_history_is_refused(world: World, url: str) -> None:
    await world.submit("j1")
    await world.backup()
    first, *_ = await archived(world)
    filled(url, [Entry(1, first.subject, b"of another cluster")])
    with pytest.raises(Refused, match=r"cannot take the backup's commits.*an empty database"):
        await restore(world, url)
    assert not (world.folder / "restored").exists()
