"""Faults of a backup's place at its end: when the manifest is written, and after it."""

from pathlib import Path
from typing import Final

import pytest

from libs.common.errors import Corrupt, Refused, Unavailable
from services.audit.backup import places
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
