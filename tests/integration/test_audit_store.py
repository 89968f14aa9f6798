"""The archive on SQLite files, and on PostgreSQL where available: append, faults, verification."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.common import subjects
from libs.common.errors import Corrupt, Fenced, Refused, Unavailable
from libs.common.transport.log import Entry
from libs.common.transport.log_memory import MemoryLog, MemoryStream
from services.audit.chain.chain import Link, extend
from services.audit.chain.verify import Report, render, until_now, verify
from services.audit.store.faults import DiskFull
from services.audit.store.store import Store
from tests.integration.audit_world import commit, entries, entry, noted, stream, tamper, wrongs

# Appending


def test_an_empty_archive_has_no_head(store: Store) -> None:
    assert store.head() is None
    assert store.append([]) == []


def test_archive_keeps_commits_byte_for_byte_under_the_chain(store: Store) -> None:
    links = store.append(entries(1, 3)) + store.append(entries(4, 700))
    assert links == extend(None, entries(1, 700))
    assert store.head() == links[-1]
    assert [Entry(r.seq, r.subject, r.data) for r in store.commits()] == entries(1, 700)
    assert [(r.index, r.hash, r.previous_hash) for r in store.commits()] == [
        (x.index, x.hash, x.previous_hash) for x in links
    ]


def test_commits_are_read_after_a_sequence_and_up_to_a_limit(store: Store) -> None:
    store.append(entries(1, 600))
    assert [r.seq for r in store.commits(after=2, limit=3)] == [3, 4, 5]
    assert [r.seq for r in store.commits(after=0, limit=300)] == list(range(1, 301))
    assert list(store.commits(after=600)) == []


@pytest.mark.parametrize("page", [1, 2, 256])
def test_commits_of_several_kinds_are_read_once_and_in_order(
    store: Store, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.audit.store.store.PAGE", page)
    charge, placed, closed = (
        {"kind": kind, "job_id": "j"} for kind in ("usage.charged", "job.placed", "job.closed")
    )
    quota, scheduler = subjects.QUOTA, subjects.SCHEDULER
    store.append(
        [
            commit(1, charge, subject=quota),
            commit(2, placed, closed, placed, subject=scheduler),
            commit(3, charge, charge, subject=quota),
            commit(4, {"kind": "job.rejected", "job_id": "j"}, subject=scheduler),
            commit(5, closed, subject=scheduler),
            commit(6, charge, subject=quota, at_ns=5),
            commit(7, placed, subject=scheduler),
            commit(8, charge, subject=quota, at_ns=900),
        ]
    )
    kinds = ("usage.charged", "job.placed", "job.closed")
    assert [each.seq for each in store.of_kinds(kinds, 10, 100)] == [1, 2, 3, 5, 7]
    assert [each.seq for each in store.of_kinds(kinds[:1], 0, 1_000)] == [1, 3, 6, 8]
    assert list(store.of_kinds((), 0, 1_000)) == []


def test_a_commit_with_a_time_in_the_future_does_not_keep_the_log_from_being_trimmed(
    store: Store,
) -> None:
    store.append([entry(1), commit(2, at_ns=10_000), *entries(3, 6)])
    assert store.young(0, since_ns=40, until_ns=100) == 4
    assert store.young(2, since_ns=40) == 4
    assert store.young(0, since_ns=70, until_ns=100) == 7


def test_another_process_continues_from_the_head(store: Store, url: str) -> None:
    store.append(entries(1, 3))
    again = Store(url)
    again.append(entries(4, 5))
    assert again.head() == extend(None, entries(1, 5))[-1]
    again.close()


def test_entries_that_are_already_archived_are_skipped(store: Store) -> None:
    store.append(entries(1, 5))
    assert store.append(entries(2, 4)) == []
    assert [link.seq for link in store.append(entries(4, 7))] == [6, 7]


def test_an_entry_that_differs_from_the_archived_one_is_corrupt(store: Store) -> None:
    store.append(entries(1, 5))
    with pytest.raises(Corrupt, match="commit 3"):
        store.append([entry(2), entry(3, padding=1), entry(6)])
    assert store.head() == extend(None, entries(1, 5))[-1]


def test_a_gap_is_corrupt_and_nothing_of_the_batch_is_stored(store: Store) -> None:
    store.append(entries(1, 2))
    with pytest.raises(Corrupt, match="needs stream sequence 4"):
        store.append([entry(3), entry(5)])
    assert store.head() == extend(None, entries(1, 2))[-1]


def test_a_second_archive_is_fenced_and_can_stand_by(store: Store, url: str) -> None:
    second = Store(url)
    second.head()
    store.append(entries(1, 2))
    with pytest.raises(Fenced, match="another audit service"):
        second.append(entries(1, 3))
    assert second.append(entries(1, 3)) == extend(None, entries(1, 3))[2:]
    second.close()


@pytest.mark.parametrize("kept", [3, 0])
def test_a_database_that_went_back_gets_no_gap(store: Store, url: str, kept: int) -> None:
    store.append(entries(1, 5))
    tamper(url, f"delete from commits where seq > {kept}", f"delete from facts where seq > {kept}")
    with pytest.raises(Corrupt, match=f"ends at commit {kept}, and this process stored up to 5"):
        store.append(entries(6, 7))
    again = Store(url)
    again.append(entries(kept + 1, 7))
    assert again.head() == extend(None, entries(1, 7))[-1]
    again.close()


def test_a_database_with_another_last_commit_is_not_continued(store: Store, url: str) -> None:
    store.append(entries(1, 5))
    tamper(url, "update commits set hash = 'x' where seq = 5")
    with pytest.raises(Corrupt, match="another commit 5"):
        store.append(entries(6, 7))
    head = store.head()
    assert head is not None and head.seq == 5


def test_a_commit_that_cannot_be_read_is_archived_without_facts(store: Store) -> None:
    store.append([Entry(1, "facts.quota", b"\xff\x00junk"), entry(2)])
    assert [(r.data, r.at_ns) for r in store.commits(limit=1)] == [(b"\xff\x00junk", 0)]
    assert [row.seq for row in store.facts_of([1, 2])] == [2, 2]


def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "audit.db").write_bytes(b"no database" * 1000)
    with pytest.raises(Corrupt, match="damaged"):
        Store(f"sqlite:///{tmp_path}/audit.db").migrate()


def test_unreachable_database_is_unavailable_and_its_password_stays_hidden(
    tmp_path: Path,
) -> None:
    with pytest.raises(Unavailable, match="try again"):
        Store(f"sqlite:///{tmp_path}/absent/audit.db").migrate()
    pytest.importorskip("psycopg")
    with pytest.raises(Unavailable) as caught:
        Store("postgresql://muster:secret@localhost:1/audit").migrate()
    assert "secret" not in str(caught.value)


def test_a_database_without_its_driver_is_refused() -> None:
    with pytest.raises(Refused, match="install"):
        Store("mysql+mysqldb://localhost/audit")


# Faults

APPENDS = """
import sys
from services.audit.store.store import Store
from tests.integration.audit_world import entries
store = Store(sys.argv[1])
at = store.head().seq if store.head() else 0
while True:
    store.append(entries(at + 1, at + 7))
    at += 7
    print(at, flush=True)
"""


def test_killed_archive_keeps_all_that_it_acknowledged(store: Store, url: str) -> None:
    for _ in range(4):
        child = subprocess.Popen(
            [sys.executable, "-c", APPENDS, url], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout
        child.stdout.readline()
        time.sleep(0.1)
        child.send_signal(signal.SIGKILL)
        acknowledged = [int(line) for line in child.stdout.read().splitlines() if line]
        child.wait()
        child.stdout.close()
        head = _settled(store)
        assert head.seq >= max(acknowledged, default=0)
        assert head.seq % 7 == 0
    store.append(entries(head.seq - 5, head.seq + 2))
    assert wrongs(asyncio.run(verify(store, stream(entries(1, head.seq + 2))))) == []


def _settled(store: Store) -> Link:
    """Return the head, once the killed child's last transaction has ended at the server too."""
    before = store.head()
    for _ in range(100):
        time.sleep(0.05)
        head = store.head()
        if head is not None and head == before:
            return head
        before = head
    raise AssertionError("the killed archive never came to rest")


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=False
        ).returncode
    ):
        pytest.skip("only root can mount a tiny file system")
    yield tmp_path
    subprocess.run(["umount", "-l", tmp_path], check=True)


def test_full_disk_is_reported_and_stores_nothing_until_there_is_space(tiny: Path) -> None:
    store = Store(f"sqlite:///{tiny}/audit.db")
    store.migrate()
    at = 0
    with pytest.raises(DiskFull, match="free space"):
        for at in range(0, 1_000, 10):
            store.append(entries(at + 1, at + 10, padding=4_000))
    subprocess.run(["mount", "-o", "remount,size=64m", tiny], check=True)
    assert [link.seq for link in store.append(entries(at + 1, at + 10, padding=4_000))] == list(
        range(at + 1, at + 11)
    )
    assert wrongs(asyncio.run(verify(store))) == []
    store.close()


# Verifying


async def test_a_whole_archive_is_proved_with_the_stream_and_an_anchor(store: Store) -> None:
    links = store.append(entries(1, 600))
    report = await verify(
        store,
        stream(entries(200, 400), entries(401, 600), [], entries(900, 901)),
        noted(links[300]),
    )
    assert report == Report(
        commits=600, head_hash=links[-1].hash, findings=(), more=0, streamed=401, since=200
    )
    assert "the chain is whole" in render(report)


async def test_an_empty_archive_is_whole(store: Store) -> None:
    assert wrongs(await verify(store)) == []


async def test_a_changed_record_is_named(store: Store, url: str) -> None:
    store.append(entries(1, 9))
    tamper(url, """update commits set subject = 'facts.quota' where "index" = 4""")
    assert wrongs(await verify(store)) == [(4, 5, "changed")]


async def test_changed_bytes_and_their_fact_rows_are_named(store: Store, url: str) -> None:
    store.append(entries(1, 9))
    tamper(url, "update commits set data = (select data from commits where seq = 2) where seq = 5")
    assert wrongs(await verify(store)) == [
        (4, 5, "changed"),
        (4, 5, "changed"),
        (4, 5, "facts differ"),
    ]


async def test_a_changed_time_is_named(store: Store, url: str) -> None:
    store.append(entries(1, 9))
    tamper(url, "update commits set at_ns = 1 where seq = 5")
    assert wrongs(await verify(store)) == [(4, 5, "changed")]


async def test_a_missing_record_is_named_and_so_are_its_facts(store: Store, url: str) -> None:
    store.append(entries(1, 9))
    tamper(url, "delete from commits where seq = 5")
    assert wrongs(await verify(store)) == [(4, 5, "missing"), (4, 5, "facts differ")]


async def test_swapped_records_are_named_reordered(store: Store, url: str) -> None:
    store.append(entries(1, 9))
    swap = [
        """update commits set "index" = 99 where seq = 3""",
        """update commits set "index" = 2 where seq = 7""",
    ]
    tamper(url, *swap, """update commits set "index" = 6 where seq = 3""")
    assert wrongs(await verify(store)) == [(2, 7, "reordered"), (6, 3, "reordered")]


async def test_an_inserted_record_is_named(store: Store, url: str) -> None:
    store.append(entries(1, 9))
    copy = (
        "insert into commits select -1, -1, subject, data, at_ns, 'x', previous_hash "
        "from commits where seq = 5"
    )
    tamper(url, copy, "delete from facts where seq = -1")
    assert (-1, -1, "inserted") in wrongs(await verify(store))


@pytest.mark.parametrize(
    "edit",
    [
        "delete from facts where seq = 5 and position = 1",
        "update facts set job_id = 'other' where seq = 5 and position = 0",
        "update facts set node_id = null where seq = 5 and position = 1",
        "update facts set at_ns = 3 where seq = 5 and position = 1",
        "insert into facts values (5, 2, 'job.lost', null, null, 50)",
    ],
)
async def test_a_facts_row_that_differs_from_its_commit_is_named(
    store: Store, url: str, edit: str
) -> None:
    store.append(entries(1, 9))
    tamper(url, edit)
    assert wrongs(await verify(store)) == [(4, 5, "facts differ")]


async def test_archive_written_during_the_check_is_not_behind(store: Store, url: str) -> None:
    store.append(entries(1, 7))
    other = Store(url)
    later = asyncio.get_running_loop().create_task(
        asyncio.to_thread(lambda: (time.sleep(0.3), other.append(entries(8, 9))))
    )
    report = await verify(store, stream(entries(1, 9)))
    await later
    other.close()
    assert (wrongs(report), report.streamed) == ([], 9)


async def test_growing_log_is_read_up_to_its_end_at_the_start() -> None:
    written = MemoryStream()
    log = MemoryLog(written)
    for n in range(1, 4):
        await log.append(subjects.QUOTA, b"%d" % n, n - 1)
    found = []
    async for batch in until_now(log, 1):
        found += [entry.seq for entry in batch]
        await log.append(subjects.QUOTA, b"more", len(written.entries))
    assert found == [2, 3]
    with pytest.raises(Corrupt):
        await anext(until_now(log, 99))


async def test_a_cut_off_end_shows_by_the_stream_and_by_an_anchor(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.audit.chain.verify.CATCH_UP_S", 0.0)
    links = store.append(entries(1, 9))
    tamper(url, "delete from commits where seq > 7", "delete from facts where seq > 7")
    assert wrongs(await verify(store)) == []
    assert wrongs(await verify(store, stream(entries(1, 9)))) == [(7, 8, "behind")]
    assert wrongs(await verify(store, noted=noted(links[8]))) == [(8, 9, "missing")]


async def test_a_rewritten_history_shows_by_the_stream_and_by_an_anchor(
    url: str, store: Store
) -> None:
    anchor = extend(None, entries(1, 9))[-1]
    store.append([*entries(1, 4), entry(5, padding=1), *entries(6, 9)])
    assert wrongs(await verify(store)) == []
    assert wrongs(await verify(store, stream(entries(3, 9)))) == [(4, 5, "stream differs")]
    assert wrongs(await verify(store, noted=noted(anchor))) == [(8, 9, "changed")]


async def test_a_missing_record_shows_by_the_stream_too(store: Store, url: str) -> None:
    store.append(entries(1, 9))
    tamper(url, "delete from commits where seq = 5", "delete from facts where seq = 5")
    assert wrongs(await verify(store, stream(entries(1, 9)))) == [
        (4, 5, "missing"),
        (4, 5, "stream differs"),
    ]


async def test_report_on_a_ruined_archive_is_bounded(store: Store, url: str) -> None:
    store.append(entries(1, 3_000))
    tamper(url, "update commits set hash = 'x'")
    report = await verify(store)
    assert (len(report.findings), report.commits) == (1_000, 3_000)
    assert report.more > 0
