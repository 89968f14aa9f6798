"""Removals spare archives that requests ask for, and equal archives are stored one by one."""

import asyncio
from io import BytesIO

import pytest

from libs.common.transport.uploads import MemoryUploads, Upload
from services.api_gateway.access import upload_turns
from services.api_gateway.access.upload_turns import YOUNG_S, UploadTurns

KEY = ("physics", "a" * 64)
OTHER = ("physics", "b" * 64)
HOUR_NS = YOUNG_S * 1_000_000_000


class Slow(MemoryUploads):
    """A store whose searches and removals end when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def find(self, tenant: str, sha256: str) -> Upload | None:
        found = await super().find(tenant, sha256)
        await self.go.wait()
        return found

    async def remove(self, tenant: str, sha256: str) -> None:
        await self.go.wait()
        await super().remove(tenant, sha256)


async def unused() -> None:
    return


async def slow() -> Slow:
    store = Slow()
    for key in (KEY, OTHER):
        await store.put(*key, BytesIO(b"x"))
    return store


async def test_an_archive_that_was_found_stays_for_an_hour() -> None:
    turns, store = UploadTurns(), await slow()
    store.go.set()
    assert await turns.find(store, KEY, 5) is not None
    assert not await turns.remove(store, KEY, (), 5 + HOUR_NS - 1)
    assert await turns.remove(store, OTHER, (), 5)
    assert await turns.remove(store, KEY, (), 5 + HOUR_NS)
    assert await turns.find(store, KEY, 5) is None and not turns.young(5)


async def test_an_archive_that_a_job_needs_or_a_request_stores_stays() -> None:
    turns, store = UploadTurns(), await slow()
    store.go.set()
    assert not await turns.remove(store, KEY, {KEY: None}, 0)
    async with turns.stores(KEY, 9):
        assert turns.storing == {KEY: 9}
        assert not await turns.remove(store, KEY, (), 0)
        assert await turns.undo(store, KEY, (), 0)
    assert KEY not in store.archives and not turns.storing


async def test_a_young_archive_is_discarded_unless_a_request_uses_it() -> None:
    turns, store = UploadTurns(), await slow()
    store.go.set()
    assert await turns.find(store, KEY, 5) is not None
    async with turns.stores(KEY, 9):
        assert not await turns.discard(store, KEY, unused)
    with turns.uses(KEY), turns.uses(KEY):
        assert not await turns.discard(store, KEY, unused)
    store.go.clear()
    finding = asyncio.create_task(turns.find(store, KEY, 5))
    await asyncio.sleep(0)
    assert not await turns.discard(store, KEY, unused)
    store.go.set()
    assert await finding is not None
    assert await turns.discard(store, KEY, unused) and not turns.young(5)
    assert KEY not in store.archives


async def test_no_request_begins_to_use_an_archive_between_the_check_and_its_removal() -> None:
    turns, store = UploadTurns(), await slow()
    store.go.set()
    finding: list[asyncio.Task[Upload | None]] = []

    async def check() -> None:
        finding.append(asyncio.create_task(turns.find(store, KEY, 5)))
        await asyncio.sleep(0.01)

    assert await turns.discard(store, KEY, check)
    assert await finding[0] is None


async def test_an_archive_that_the_check_finds_in_use_stays() -> None:
    turns, store = UploadTurns(), await slow()
    store.go.set()

    async def used() -> None:
        raise ValueError("in use")

    with pytest.raises(ValueError, match="in use"):
        await turns.discard(store, KEY, used)
    assert await turns.find(store, KEY, 5) is not None


async def test_an_archive_stays_while_a_request_looks_for_it() -> None:
    turns, store = UploadTurns(), await slow()
    finding = [asyncio.create_task(turns.find(store, KEY, 0)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not await turns.remove(store, KEY, (), HOUR_NS)
    store.go.set()
    assert all(await asyncio.gather(*finding))


async def test_a_request_waits_for_the_removal_of_its_archive_and_then_finds_none() -> None:
    turns, store = UploadTurns(), await slow()
    removing = asyncio.create_task(turns.remove(store, KEY, (), 0))
    await asyncio.sleep(0)
    finding = asyncio.create_task(turns.find(store, KEY, 0))
    assert not await turns.remove(store, KEY, (), 0)
    store.go.set()
    assert await removing and await finding is None


async def test_equal_archives_are_stored_one_after_another() -> None:
    turns, most = UploadTurns(), 0

    async def stored() -> None:
        nonlocal most
        async with turns.stores(KEY, 9):
            most = max(most, sum(turns.storing.values()))
            await asyncio.sleep(0)

    await asyncio.gather(*(stored() for _ in range(5)))
    assert most == 9 and not turns.storing


async def test_the_marks_of_found_archives_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, store = UploadTurns(), MemoryUploads()
    for number in range(5):
        await store.put("t", str(number), BytesIO(b"x"))
    monkeypatch.setattr(upload_turns, "FOUND_MAX", 3)
    for number in range(5):
        await turns.find(store, ("t", str(number)), number)
    assert list(turns.young(5)) == [("t", "2"), ("t", "3"), ("t", "4")]
