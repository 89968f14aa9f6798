"""Faults of a backup's place at its end, and a log that is slow."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest

from libs.common.errors import Corrupt, Refused, Unavailable
from libs.common.transport.log import Entry
from libs.common.transport.log_jetstream import JetStreamLog
from services.audit.backup import backing_up, places
from services.audit.backup.places import CURRENT, DirectoryPlace
from tests.integration.test_backup import World, world  # noqa: F401

FAULTS: Final = (Refused("403 AccessDenied"), Unavailable("no answer"), PermissionError("no right"))


class Place(DirectoryPlace):
    """A place that refuses to list objects or to remove them, or that damages its manifest."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.list_fault: Exception | None = None
        self.delete_fault: Exception | None = None
        self.damages = False

    async def old_names(self, folder: str, older_s: float) -> list[str]:
        if self.list_fault is not None:
            raise self.list_fault
        return [f"{folder}/left"]

    async def delete(self, name: str) -> None:
        if self.delete_fault is not None:
            raise self.delete_fault
        await super().delete(name)

    async def get(self, name: str) -> bytes | None:
        found = await super().get(name)
        return found[:-1] if found is not None and self.damages and name == CURRENT else found


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("right", ["list_fault", "delete_fault"])
async def test_a_backup_is_complete_although_old_objects_cannot_be_removed(
    world: World,  # noqa: F811
    fault: Exception,
    right: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await world.submit("j1")
    world.place = place = Place(world.folder / "place")
    setattr(place, right, fault)
    manifest = await world.backup()
    assert (await world.contents()).manifest == manifest
    told = capsys.readouterr().err
    assert told.startswith("warning: the backup is complete") and str(fault) in told


async def test_a_manifest_that_is_damaged_when_written_is_not_called_the_last_backup(
    world: World,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await world.submit("j1")
    world.place = place = Place(world.folder / "place")
    written = places._write

    def write(path: Path, data: bytes) -> None:
        place.damages = path.name == CURRENT
        written(path, data)

    monkeypatch.setattr(places, "_write", write)
    with pytest.raises(Corrupt, match="may hold no readable backup now") as raised:
        await world.backup()
    assert "is unchanged" not in str(raised.value)


@pytest.fixture
def silent_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each read of the log begins with so many empty batches, as on a slow server."""
    read, wanted = JetStreamLog.read, [0]

    async def slow(self: JetStreamLog, after: int) -> AsyncIterator[list[Entry]]:
        for _ in range(wanted[0]):
            yield []
        async for batch in read(self, after):
            yield batch

    monkeypatch.setattr(JetStreamLog, "read", slow)
    return wanted


async def test_a_slow_log_is_backed_up(
    world: World,  # noqa: F811
    silent_batches: list[int],
) -> None:
    silent_batches[0] = 3
    await world.submit("j1")
    await world.backup()
    last = await world.submit("j2")
    assert (await world.backup()).seq == last


async def test_a_silent_log_is_not_called_another_history(
    world: World,  # noqa: F811
    silent_batches: list[int],
) -> None:
    await world.submit("j1")
    first = await world.backup()
    silent_batches[0] = backing_up.SILENT_MAX + 1
    with pytest.raises(Unavailable, match="did not return commit 1"):
        await world.backup()
    assert (await world.contents()).manifest == first
