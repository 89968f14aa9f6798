"""When the old store of a replaced server is deleted."""

import asyncio
from pathlib import Path

import pytest

from libs.compose import replaced
from libs.embedded import space_watch

SOON_S = 10.0


def stored(folder: Path) -> Path:
    """Create a server's files, and return the folder that holds them."""
    (folder / replaced.STORED).mkdir()
    (folder / replaced.STORED / "block").write_bytes(b"facts")
    return folder


def test_server_starts_empty_and_its_files_are_kept_beside_its_store(tmp_path: Path) -> None:
    said: list[str] = []
    replaced.put_aside(stored(tmp_path), said.append)
    assert not (tmp_path / replaced.STORED).exists()
    assert (tmp_path / replaced.ASIDE / "block").read_bytes() == b"facts"
    assert "until the server holds the whole log" in said[0]
    replaced.put_aside(tmp_path, said.append)  # the server has stored nothing yet
    assert not (tmp_path / replaced.ASIDE).exists() and len(said) == 1


async def test_old_store_is_deleted_when_the_server_holds_the_whole_log_and_not_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaced, "LOOK_S", 0.01)
    said: list[str] = []
    replaced.put_aside(stored(tmp_path), print)
    holds, looks = False, 0

    async def holds_all() -> bool:
        nonlocal looks
        looks += 1
        return holds

    deleting = asyncio.create_task(replaced.delete_when_filled(tmp_path, holds_all, said.append))
    async with asyncio.timeout(SOON_S):
        while looks < 3:
            await asyncio.sleep(0.01)
        assert (tmp_path / replaced.ASIDE).is_dir()
        holds = True
        while not said:
            await asyncio.sleep(0.01)
    assert not (tmp_path / replaced.ASIDE).exists()
    assert "the server holds the whole log" in said[0]
    assert not deleting.done()
    deleting.cancel()


def test_old_store_never_keeps_a_server_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    replaced.put_aside(stored(tmp_path), print)
    replaced.make_space(tmp_path, said.append)
    assert (tmp_path / replaced.ASIDE).is_dir() and said == []
    monkeypatch.setattr(space_watch, "free_bytes", lambda store: space_watch.START_BYTES - 1)
    replaced.make_space(tmp_path, said.append)
    assert not (tmp_path / replaced.ASIDE).exists()
    assert "too little space" in said[0]
    replaced.make_space(tmp_path, said.append)
    assert len(said) == 1


async def test_an_old_store_on_a_faulty_disk_never_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is too long fails as a damaged folder does: also `exists` raises."""
    monkeypatch.setattr(replaced, "LOOK_S", 0.01)
    monkeypatch.setattr(space_watch, "free_bytes", lambda store: space_watch.START_BYTES - 1)
    store, said = tmp_path / ("x" * 300), list[str]()

    async def holds_all() -> bool:
        return True

    replaced.make_space(store, said.append)
    assert "could not be deleted" in said[0]
    deleting = asyncio.create_task(replaced.delete_when_filled(store, holds_all, said.append))
    await asyncio.wait((deleting,), timeout=0.1)
    assert not deleting.done()
    assert len(said) == 2 and "could not be deleted" in said[1]
    deleting.cancel()


async def test_an_unreadable_answer_of_a_server_only_delays_the_deletion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaced, "LOOK_S", 0.01)
    said: list[str] = []
    replaced.put_aside(stored(tmp_path), print)
    faults = [KeyError("state"), KeyError("state")]

    async def holds_all() -> bool:
        if faults:
            raise faults.pop()
        return True

    deleting = asyncio.create_task(replaced.delete_when_filled(tmp_path, holds_all, said.append))
    async with asyncio.timeout(SOON_S):
        while len(said) < 2:
            await asyncio.sleep(0.01)
    assert "KeyError('state')" in said[0] and "the server holds the whole log" in said[1]
    assert not (tmp_path / replaced.ASIDE).exists()
    deleting.cancel()
