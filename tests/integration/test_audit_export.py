"""Exports are complete and in order, and two parts equal one run; on SQLite and PostgreSQL."""

import csv
import io
import json
import os
import subprocess
import sys
import tracemalloc
from datetime import UTC, datetime
from pathlib import Path

import pytest

from libs.common.errors import Refused
from libs.common.transport.log import Entry
from services.audit.commands import _span
from services.audit.export.events import BEGINNING, Position, parse_position
from services.audit.export.export import COLUMNS, SEQ_MAX, Span, lines
from services.audit.store.store import Store
from tests.integration.audit_world import commit, entries

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOW_NS = int(NOW.timestamp()) * 1_000_000_000


def exported(store: Store, span: Span | None = None, form: str = "ndjson") -> bytes:
    return b"".join(lines(store, span or Span(), "c1", form))


def ids(data: bytes) -> list[str]:
    return [json.loads(line)["id"] for line in data.splitlines()]


def test_every_event_is_a_line_in_the_order_of_the_log(store: Store) -> None:
    store.append(entries(1, 700))
    assert ids(exported(store)) == [
        f"{seq}-{position}" for seq in range(1, 701) for position in (0, 1)
    ]


def test_csv_rows_equal_ndjson_lines(store: Store) -> None:
    store.append(
        [*entries(1, 3), commit(4, {"kind": "a.b", "text": 'a "quoted", line\nand another'})]
    )
    rows = list(csv.DictReader(io.StringIO(exported(store, form="csv").decode())))
    told = [json.loads(line) for line in exported(store).splitlines()]
    assert tuple(rows[0]) == COLUMNS and len(rows) == len(told) == 7
    for row, event in zip(rows, told, strict=True):
        assert json.loads(row.pop("data")) == event["data"]
        assert int(row.pop("sequence")) == int(event["sequence"])
        assert row == {column: event.get(column, "") for column in row}


@pytest.mark.parametrize("form", ["ndjson", "csv"])
def test_export_continued_after_the_last_id_equals_one_export(store: Store, form: str) -> None:
    store.append(entries(1, 30))
    whole = exported(store, form=form).splitlines(keepends=True)
    for cut in (1, 2, 7, 60):
        done = whole[:cut]
        if form == "csv" and cut == 1:
            continue  # the titles alone have no id
        last = json.loads(done[-1])["id"] if form == "ndjson" else done[-1].decode().split(",")[0]
        assert (
            done + exported(store, Span(after=parse_position(last)), form).splitlines(keepends=True)
            == whole
        )


def test_bounds_by_sequence_and_time_are_inclusive(store: Store) -> None:
    store.append(
        [
            commit(seq, {"kind": "a.b"}, at_ns=at_ns)
            for seq, at_ns in enumerate([10, 20, 15, 30, 40], start=1)
        ]
    )
    assert ids(exported(store, Span(after=Position(1), until_seq=3))) == ["2-0", "3-0"]
    assert ids(exported(store, Span(since_ns=15))) == ["2-0", "3-0", "4-0", "5-0"]
    assert ids(exported(store, Span(since_ns=15, until_ns=20))) == ["2-0", "3-0"]
    assert ids(exported(store, Span(since_ns=41))) == []
    assert ids(exported(store, Span(after=Position(4), since_ns=15))) == ["5-0"]


def test_commit_without_a_readable_time_has_the_time_of_the_one_before(store: Store) -> None:
    junk = [Entry(2, "facts.quota", b"junk"), Entry(5, "facts.quota", b"junk")]
    store.append(
        [
            commit(1, {"kind": "a.b"}),
            junk[0],
            commit(3, {"kind": "a.b"}),
            commit(4, {"kind": "a.b"}),
            junk[1],
        ]
    )
    assert ids(exported(store, Span(since_ns=40))) == ["4-0", "5-0"]


def test_memory_does_not_grow_with_the_archive(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/audit.db")
    store.migrate()
    for first in range(1, 4_001, 500):
        store.append(entries(first, first + 499, padding=4_000))
    tracemalloc.start()
    size = sum(len(piece) for piece in lines(store, Span(), "c1", "ndjson"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size > 16 << 20 and peak < 8 << 20


@pytest.mark.parametrize(
    ("asked", "span"),
    [
        (("", "", ""), Span()),
        (("5", "9", ""), Span(Position(4), 9)),
        (("0", "", ""), Span()),
        (("", "", "7-1"), Span(Position(7, 1))),
        (("9", "", "7-1"), Span(Position(8))),
        (
            ("12h", "30m", ""),
            Span(BEGINNING, SEQ_MAX, NOW_NS - 43_200 * 10**9, NOW_NS - 1_800 * 10**9),
        ),
        (
            ("2026-01-31T12:00:00Z", "2026-01-31T14:00:00+02:00", ""),
            Span(BEGINNING, SEQ_MAX, NOW_NS, NOW_NS),
        ),
        (("2026-01-31T12:00", "", ""), Span(BEGINNING, SEQ_MAX, NOW_NS)),
        (("9" * 20, "9" * 5_000, ""), Span(Position(SEQ_MAX - 1), SEQ_MAX)),
        (("0001-01-01T00:00+23:00", "9999-12-31", ""), Span(BEGINNING, SEQ_MAX, -1, SEQ_MAX)),
    ],
)
def test_accepted_forms_of_bounds_are_read(asked: tuple[str, str, str], span: Span) -> None:
    assert _span(*asked, NOW) == span


@pytest.mark.parametrize(
    "asked", [("yesterday", "", ""), ("", "-1", ""), ("", "", "x"), ("9" * 30 + "d", "", "")]
)
def test_invalid_bounds_are_refused(asked: tuple[str, str, str]) -> None:
    with pytest.raises(Refused):
        _span(*asked, NOW)


def command(state: Path, *arguments: str) -> tuple[int, bytes, str]:
    environment = {
        "PATH": os.environ["PATH"],
        "MUSTER_STATE": str(state),
        "MUSTER_CLUSTER_ID": "c1",
    }
    line = [sys.executable, "-m", "services.audit", *arguments]
    done = subprocess.run(line, env=environment, capture_output=True, timeout=60)
    return done.returncode, done.stdout, done.stderr.decode()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = Store(f"sqlite:///{tmp_path}/audit.db")
    store.migrate()
    store.append(entries(1, 9))
    store.close()
    return tmp_path


def test_the_command_writes_to_stdout_or_to_a_new_file(folder: Path) -> None:
    code, out, _ = command(folder, "export", "--since", "3")
    assert (code, ids(out)[0], len(ids(out))) == (0, "3-0", 14)
    file = folder / "out.ndjson"
    assert command(folder, "export", "--since", "3", "--output", str(file)) == (0, b"", "")
    assert file.read_bytes() == out
    code, _, said = command(folder, "export", "--output", str(file))
    assert code == 2 and "File exists" in said and file.read_bytes() == out


@pytest.mark.parametrize(
    "bound", ["9" * 20, str(1 << 63), "2300-01-01", "1677-01-01", "0001-01-01"]
)
def test_bounds_that_no_archive_reaches_are_no_error(folder: Path, bound: str) -> None:
    for option in ("--since", "--until"):
        code, _, said = command(folder, "export", option, bound)
        assert (code, said) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_export_to_a_full_disk_is_an_error_in_one_line(folder: Path) -> None:
    line = [sys.executable, "-m", "services.audit", "export"]
    environment = {"PATH": os.environ["PATH"], "MUSTER_STATE": str(folder)}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(line, env=environment, stdout=full, stderr=-1, text=True, timeout=60)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "the standard output failed (No space left on device)" in done.stderr


def test_migrate_command_goes_down_and_up_and_drops_nothing_by_default(folder: Path) -> None:
    code, _, said = command(folder, "migrate", "--to", "base")
    assert code == 2 and "drops the archive" in said
    assert command(folder, "migrate")[:2] == (0, b"the archive's schema is revision 0001\n")
    assert command(folder, "migrate", "--to", "base", "--yes")[:2] == (
        0,
        b"the archive's schema is revision none, it was 0001\n",
    )
    assert command(folder, "migrate", "--to", "0001")[:2] == (
        0,
        b"the archive's schema is revision 0001, it was none\n",
    )
    assert command(folder, "export")[:2] == (0, b"")
