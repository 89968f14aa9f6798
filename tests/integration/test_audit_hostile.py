"""Ten hostile edits of an archive by an attacker who can write to its database are all found.

The forger knows the chain and recomputes all hashes that it can. Edits that leave a valid chain (a
cut end, a rewritten history) show by a head that an operator kept. The fact rows, which are only an
index, follow each edit, so the test checks the chain alone.
"""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nkeys
import pytest

from libs.embedded.servers import free_ports
from services.audit import commands
from services.audit.chain.chain import GENESIS, link
from services.audit.chain.heads import Signer, encode
from services.audit.chain.verify import verify
from services.audit.store.reading import read
from services.audit.store.store import Record, Store
from tests.integration.audit_world import entries, entry, wrongs

SIZE = 12
HEAD_AT = 11
SIGNER = Signer(nkeys.encode_seed(b"s" * 32, nkeys.PREFIX_BYTE_USER))

Rows = list[dict[str, Any]]


def relinked(rows: Rows, since: int = 0) -> Rows:
    """Recompute all hashes from row `since` on, as the archive itself would."""
    previous = rows[since - 1]["hash"] if since else GENESIS
    for row in rows[since:]:
        row["previous_hash"] = previous
        previous = row["hash"] = link(
            seq=row["seq"],
            subject=row["subject"],
            data=row["data"],
            index=row["index"],
            previous_hash=previous,
        )
    return rows


def renumbered(rows: Rows) -> Rows:
    for index, row in enumerate(rows):
        row["index"], row["seq"] = index, index + 1
    return rows


def changed_bytes(rows: Rows) -> Rows:
    rows[4]["data"] = entry(5, padding=1).data
    return rows


def changed_time(rows: Rows) -> Rows:
    rows[4]["at_ns"] += 3_600_000_000_000
    return rows


def changed_record_and_its_hash(rows: Rows) -> Rows:
    rows[4]["data"] = entry(5, padding=1).data
    rows[4]["hash"] = link(
        seq=5,
        subject=rows[4]["subject"],
        data=rows[4]["data"],
        index=4,
        previous_hash=rows[4]["previous_hash"],
    )
    return rows


def changed_chain_hash(rows: Rows) -> Rows:
    rows[4]["hash"] = rows[5]["previous_hash"] = "f" * 64
    return rows


def changed_index(rows: Rows) -> Rows:
    rows[4]["index"], rows[4]["seq"] = 40, 41
    return rows


def deleted(rows: Rows) -> Rows:
    return renumbered(rows[:4] + rows[5:])


def inserted(rows: Rows) -> Rows:
    return renumbered([*rows[:4], {**rows[4], "data": entry(5, padding=9).data}, *rows[4:]])


def reordered(rows: Rows) -> Rows:
    for name in ("subject", "data", "at_ns", "hash", "previous_hash"):
        rows[3][name], rows[7][name] = rows[7][name], rows[3][name]
    return rows


def truncated(rows: Rows) -> Rows:
    return rows[:8]


def rewritten(rows: Rows) -> Rows:
    rows[4]["data"] = entry(5, padding=1).data
    return relinked(rows, 4)


# What the chain alone says of each, and what a kept head of HEAD_AT adds.
EDITS: dict[Callable[[Rows], Rows], tuple[list[tuple[int, str]], list[tuple[int, str]]]] = {
    changed_bytes: ([(4, "changed")], []),
    changed_time: ([(4, "changed")], []),
    changed_record_and_its_hash: ([(4, "changed")], []),
    changed_chain_hash: ([(4, "changed"), (5, "changed")], []),
    changed_index: ([(40, "reordered")], []),
    deleted: ([(4, "missing")], []),
    inserted: ([(4, "inserted")], []),
    reordered: ([(3, "reordered"), (7, "reordered")], []),
    truncated: ([], [(HEAD_AT - 1, "missing")]),
    rewritten: ([], [(HEAD_AT - 1, "changed")]),
}


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Run `verify` with these arguments and without a log; return exit code, output, complaints."""
    (port,) = free_ports(1)
    monkeypatch.setattr(commands, "CONNECT_S", 0.05)
    monkeypatch.setenv("MUSTER_STATE", str(tmp_path))
    monkeypatch.setenv("MUSTER_NATS", f"nats://127.0.0.1:{port}")

    def call(*arguments: str) -> tuple[int, str, str]:
        code = commands.call(["verify", *arguments])
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def head(tmp_path: Path) -> Record:
    """Create the archive in tmp_path; return it with the record of a signed head."""
    store = Store(f"sqlite:///{tmp_path / 'audit.db'}")
    store.migrate()
    store.append(entries(1, SIZE))
    (found,) = store.between(HEAD_AT, HEAD_AT)
    store.close()
    (tmp_path / "kept").write_bytes(
        encode(SIGNER.sign("c1", found.seq, found.hash, "2026-01-31T12:00:00Z")) + b"\n"
    )
    return found


def forge(path: Path, edit: Callable[[Rows], Rows]) -> None:
    """Replace the whole database by the forger's rows."""
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    rows = edit([dict(row) for row in connection.execute('select * from commits order by "index"')])
    connection.execute("delete from commits")
    connection.execute("delete from facts")
    columns = '"index", seq, subject, data, at_ns, hash, previous_hash'
    connection.executemany(
        (
            f"insert into commits ({columns}) values (:index, :seq, :subject, :data, :at_ns, "
            ":hash, :previous_hash)"
        ),
        rows,
    )
    facts = [fact for row in rows for fact in read(row["seq"], row["subject"], row["data"]).facts]
    values = [
        (fact.seq, fact.position, fact.kind, fact.job_id, fact.node_id, fact.at_ns)
        for fact in facts
    ]
    connection.executemany("insert into facts values (?, ?, ?, ?, ?, ?)", values)
    connection.commit()
    connection.close()


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_a_hostile_edit_is_found(
    edit: Callable[[Rows], Rows], head: Record, tmp_path: Path
) -> None:
    by_chain, by_head = EDITS[edit]
    forge(tmp_path / "audit.db", edit)
    store = Store(f"sqlite:///{tmp_path / 'audit.db'}", read_only=True)
    alone = [(index, wrong) for index, _, wrong in wrongs(asyncio.run(verify(store)))]
    assert set(by_chain) <= set(alone) and bool(alone) == bool(by_chain)
    both = [
        (index, wrong)
        for index, _, wrong in wrongs(asyncio.run(verify(store, noted={head.seq: head.hash})))
    ]
    assert both and set(by_chain + by_head) <= set(both)


@pytest.mark.parametrize("edit", [deleted, truncated, rewritten], ids=lambda edit: edit.__name__)
def test_the_command_finds_it_with_the_head_that_was_kept(
    edit: Callable[[Rows], Rows], head: Record, tmp_path: Path, command: Command
) -> None:
    assert command("--head", str(tmp_path / "kept"), "--key", SIGNER.key)[0] == 0
    forge(tmp_path / "audit.db", edit)
    code, out, _ = command("--head", str(tmp_path / "kept"), "--key", SIGNER.key)
    assert code == 3 and "finding" in out.splitlines()[-1]


def test_an_untouched_archive_is_whole_and_holds_the_head(
    head: Record, tmp_path: Path, command: Command
) -> None:
    forge(tmp_path / "audit.db", lambda rows: rows)
    code, out, said = command("--head", str(tmp_path / "kept"))
    assert (code, out) == (
        0,
        f"{SIZE} commits checked, not compared with the log: the chain is whole; "
        f"head {tail_hash(tmp_path)}\n",
    )
    assert f"1 heads signed by {SIGNER.key}; check that this is the audit's key" in said


def test_a_forgers_own_head_of_a_rewritten_archive_does_not_count(
    head: Record, tmp_path: Path, command: Command
) -> None:
    forge(tmp_path / "audit.db", rewritten)
    forger = Signer(nkeys.encode_seed(b"f" * 32, nkeys.PREFIX_BYTE_USER))
    (tmp_path / "kept").write_bytes(
        encode(forger.sign("c1", SIZE, tail_hash(tmp_path), "2026-01-31T12:00:00Z")) + b"\n"
    )
    assert command("--head", str(tmp_path / "kept"))[0] == 0
    code, out, _ = command("--head", str(tmp_path / "kept"), "--key", SIGNER.key)
    assert code == 3 and "not by" in out.splitlines()[0]


def test_two_signed_histories_of_one_commit_are_reported(
    head: Record, tmp_path: Path, command: Command
) -> None:
    other = SIGNER.sign("c1", head.seq, "e" * 64, "2026-01-31T13:00:00Z")
    with (tmp_path / "kept").open("ab") as file:
        file.write(encode(other) + b"\n")
    code, out, _ = command("--head", str(tmp_path / "kept"))
    assert code == 3 and "two histories were signed" in out.splitlines()[0]


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [("", 2, "contains no head"), ("{}", 3, "is not a head"), (None, 2, "cannot be read")],
)
def test_file_without_heads_is_reported_in_one_line(
    head: Record, tmp_path: Path, text: str | None, code: int, said: str, command: Command
) -> None:
    if text is not None:
        (tmp_path / "none").write_text(text)
    found = command("--head", str(tmp_path / "none"))
    assert found[:2] == (code, "") and said in found[2] and len(found[2].splitlines()) == 1


def tail_hash(folder: Path) -> str:
    link = Store(f"sqlite:///{folder / 'audit.db'}", read_only=True).head_now()
    assert link is not None
    return link.hash
