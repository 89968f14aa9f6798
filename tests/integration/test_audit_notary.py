"""The notary signs heads in time, keeps them in files and publishes them.

It does not sign an archive that no longer holds the last head.
"""

import asyncio
from pathlib import Path

import nkeys
import pytest

from libs.common.errors import Corrupt, Unavailable
from libs.common.process.clock import SystemClock
from services.audit.chain.heads import Head, Signer, problem
from services.audit.chain.notary import Heads, Notary
from services.audit.store.store import Store
from tests.integration.audit_world import entries, entry, tamper

SIGNER = Signer(nkeys.encode_seed(b"s" * 32, nkeys.PREFIX_BYTE_USER))


class World:
    """An archive, the files of its heads, and the list of published heads."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'audit.db'}"
        self.store = Store(self.url)
        self.store.migrate()
        self.files = Heads(folder)
        self.heard: list[Head] = []
        self.deaf = False

    def notary(self) -> Notary:
        return Notary(
            store=self.store,
            signer=SIGNER,
            files=self.files,
            cluster="c1",
            clock=SystemClock(),
            archived=self.archived,
            publish=self.hear,
        )

    def archived(self) -> int:
        link = self.store.head_now()
        return link.seq if link is not None else 0

    async def hear(self, head: Head) -> None:
        if self.deaf:
            raise Unavailable("no answer")
        self.heard.append(head)

    def lines(self) -> int:
        return sum(
            len(path.read_bytes().splitlines()) for path in self.files.folder.glob("*.ndjson")
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_head_names_the_archives_end_and_is_kept_and_published(world: World) -> None:
    links = world.store.append(entries(1, 5))
    head = await world.notary().sign()
    assert head is not None and (head.cluster, head.sequence, head.hash) == (
        "c1",
        5,
        links[-1].hash,
    )
    assert problem(head, SIGNER.key) == ""
    assert world.files.newest() == head and world.heard == [head]


async def test_an_empty_archive_has_no_head(world: World) -> None:
    assert await world.notary().sign() is None
    assert world.files.newest() is None


async def test_heads_are_signed_after_some_commits_or_some_time_and_not_without_a_new_commit(
    world: World,
) -> None:
    world.store.append(entries(1, 5))
    notary = world.notary()
    assert notary._due(60, 100)
    await notary.sign()
    assert not notary._due(0, 1)
    world.store.append(entries(6, 7))
    assert (notary._due(60, 100), notary._due(60, 2), notary._due(0, 100)) == (False, True, True)


async def test_next_notary_continues_after_the_last_head(world: World) -> None:
    world.store.append(entries(1, 5))
    await world.notary().sign()
    world.store.append(entries(6, 9))
    again = world.notary()
    await again.read_newest()
    assert again.head is not None and again.head.sequence == 5
    await again.sign()
    assert [head.sequence for head in world.heard] == [5, 9] and world.lines() == 2


async def test_the_newest_head_has_the_highest_sequence_also_after_a_wrong_clock(
    world: World,
) -> None:
    world.store.append(entries(1, 5))
    await world.notary().sign()
    (path,) = world.files.folder.glob("*.ndjson")
    path.rename(path.with_name("2099-12.ndjson"))
    world.store.append(entries(6, 9))
    await world.notary().sign()
    newest = world.files.newest()
    assert newest is not None and newest.sequence == 9
    assert len(list(world.files.folder.glob("*.ndjson"))) == 2


async def test_head_that_was_not_published_is_in_the_file(world: World) -> None:
    world.store.append(entries(1, 5))
    world.deaf = True
    with pytest.raises(Unavailable):
        await world.notary().sign()
    newest = world.files.newest()
    assert newest is not None and newest.sequence == 5


@pytest.mark.parametrize("cut", [1, 40])
async def test_line_that_a_crash_cut_short_is_replaced(world: World, cut: int) -> None:
    world.store.append(entries(1, 5))
    notary = world.notary()
    await notary.sign()
    (path,) = world.files.folder.glob("*.ndjson")
    with path.open("ab") as file:
        file.write(path.read_bytes()[:cut])
    world.store.append(entries(6, 7))
    await world.notary().sign()
    newest = world.files.newest()
    assert newest is not None and newest.sequence == 7 and world.lines() == 2


@pytest.mark.parametrize("zeros", [slice(0, 40), slice(40, 80), slice(0, None)])
async def test_line_that_a_crash_left_with_zeros_is_replaced(world: World, zeros: slice) -> None:
    world.store.append(entries(1, 5))
    await world.notary().sign()
    (path,) = world.files.folder.glob("*.ndjson")
    torn = bytearray(path.read_bytes()[:-1])
    torn[zeros] = bytes(len(torn[zeros]))
    with path.open("ab") as file:
        file.write(torn + b"\n")
    world.store.append(entries(6, 7))
    await world.notary().sign()
    assert [head.sequence for head in world.heard] == [5, 7] and world.lines() == 2


async def test_first_line_of_a_file_that_a_crash_left_with_zeros_is_replaced(world: World) -> None:
    world.store.append(entries(1, 5))
    await world.notary().sign()
    (path,) = world.files.folder.glob("*.ndjson")
    path.write_bytes(bytes(300))
    await world.notary().sign()
    assert world.lines() == 1


async def test_a_damaged_line_delays_heads_and_not_the_archive(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.store.append(entries(1, 5))
    await world.notary().sign()
    (path,) = world.files.folder.glob("*.ndjson")
    before = path.read_bytes() + b'{"cluster":"c1","sequence":\n'
    path.write_bytes(before)
    world.store.append(entries(6, 7))
    running = asyncio.create_task(world.notary().run(0, 1))
    async with asyncio.timeout(10):
        while f"the last line of {path} was changed or damaged" not in caplog.text:
            await asyncio.sleep(0.05)
    assert not running.done()
    running.cancel()
    assert path.read_bytes() == before


async def test_names_of_new_files_are_synced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("services.audit.chain.notary.sync_folder", synced.append)
    world.store.append(entries(1, 5))
    await world.notary().sign()
    assert synced == [world.files.folder.parent, world.files.folder]
    world.store.append(entries(6, 7))
    await world.notary().sign()
    assert len(synced) == 2


async def test_an_archive_that_was_cut_off_is_not_signed(world: World) -> None:
    world.store.append(entries(1, 9))
    notary = world.notary()
    await notary.sign()
    tamper(world.url, "delete from commits where seq > 7", "delete from facts where seq > 7")
    with pytest.raises(Corrupt, match="ends before it"):
        await world.notary().sign()
    assert world.lines() == 1


async def test_a_rewritten_archive_is_not_signed(world: World) -> None:
    world.store.append(entries(1, 9))
    notary = world.notary()
    await notary.sign()
    tamper(world.url, "delete from commits", "delete from facts")
    world.store.head()
    world.store.append([*entries(1, 4), entry(5, padding=1), *entries(6, 12)])
    with pytest.raises(Corrupt, match="has another hash there"):
        await notary.sign()
    assert world.lines() == 1


async def test_notary_that_may_not_sign_logs_the_error_and_runs_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.store.append(entries(1, 9))
    notary = world.notary()
    await notary.sign()
    tamper(world.url, "delete from commits where seq > 7")
    running = asyncio.create_task(notary.run(0, 1))
    async with asyncio.timeout(10):
        while "the head is not signed: the head of commit 9" not in caplog.text:
            await asyncio.sleep(0.05)
    assert not running.done()
    running.cancel()


async def test_the_newest_head_is_read_when_it_is_asked_for(world: World) -> None:
    world.store.append(entries(1, 2))
    signed = await world.notary().sign()
    assert signed is not None and await world.notary().newest() == signed
