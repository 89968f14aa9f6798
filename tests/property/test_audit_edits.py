"""Any single edit of an archive is found, and named for what it is."""

from collections.abc import Callable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from libs.common.transport.log import Entry
from services.audit.chain.alignment import findings
from services.audit.chain.chain import extend, link
from services.audit.chain.segments import Finding, Walk, step
from services.audit.store.reading import read
from services.audit.store.store import Record

Archive = list[Record]
SIZES = st.integers(min_value=4, max_value=40)


def archive(size: int) -> Archive:
    entries = [
        Entry(seq, f"facts.node.n{seq % 3}", b"commit %d" % seq) for seq in range(1, size + 1)
    ]
    return [
        Record(
            index=x.index,
            seq=x.seq,
            subject=x.subject,
            data=entry.data,
            at_ns=0,
            hash=x.hash,
            previous_hash=x.previous_hash,
        )
        for entry, x in zip(entries, extend(None, entries), strict=True)
    ]


def look(records: Archive) -> list[Finding]:
    walk = Walk()
    for record in records:
        step(walk, record)
    return findings(walk)


def named(records: Archive) -> list[tuple[int, str]]:
    return [(finding.index, finding.wrong) for finding in look(records)]


def changed(record: Record, **fields: object) -> Record:
    return msgspec.structs.replace(record, **fields)


def renumber(records: Archive, how: str) -> Archive:
    """As a careful forger would: nothing, the index only, or index and sequence."""
    if how == "kept":
        return records
    numbers = [
        {"index": i} if how == "index" else {"index": i, "seq": i + 1} for i in range(len(records))
    ]
    return [changed(record, **n) for record, n in zip(records, numbers, strict=True)]


def own_hash(record: Record) -> Record:
    return changed(
        record,
        hash=link(
            seq=record.seq,
            subject=record.subject,
            data=record.data,
            index=record.index,
            previous_hash=record.previous_hash,
        ),
    )


EDITS: dict[str, Callable[[Record], Record]] = {
    "data": lambda r: changed(r, data=r.data[:-1] + bytes([r.data[-1] ^ 1])),
    "data cut": lambda r: changed(r, data=r.data[:-1]),
    "subject": lambda r: changed(r, subject=r.subject + "x"),
    "seq": lambda r: changed(r, seq=r.seq + 1_000),
    "hash": lambda r: changed(r, hash="f" * 64),
    "previous_hash": lambda r: changed(r, previous_hash="f" * 64),
}
HOW = st.sampled_from(["kept", "index", "both"])


@given(SIZES)
def test_a_whole_archive_has_no_findings(size: int) -> None:
    assert named(archive(size)) == []


@given(SIZES, st.data(), st.sampled_from(sorted(EDITS)))
def test_a_changed_record_is_named(size: int, data: st.DataObject, edit: str) -> None:
    records = archive(size)
    i = data.draw(st.integers(0, size - 1))
    records[i] = EDITS[edit](records[i])
    assert named(records) == [(i, "changed")]


@given(SIZES, st.data(), st.sampled_from(["data", "data cut", "subject", "previous_hash"]))
def test_a_record_changed_together_with_its_hash_is_named(
    size: int, data: st.DataObject, edit: str
) -> None:
    records = archive(size)
    i = data.draw(st.integers(0, size - 2))
    records[i] = own_hash(EDITS[edit](records[i]))
    assert named(records) == [(i, "changed")]


@given(SIZES, st.data(), HOW)
def test_a_missing_record_is_named(size: int, data: st.DataObject, how: str) -> None:
    records = archive(size)
    i = data.draw(st.integers(0, size - 2))
    del records[i]
    assert named(renumber(records, how)) == [(i, "missing")]


@given(SIZES, st.data(), HOW)
def test_missing_records_in_a_row_are_one_finding(size: int, data: st.DataObject, how: str) -> None:
    records = archive(size)
    i, j = sorted(data.draw(st.lists(st.integers(0, size - 2), min_size=2, max_size=2)))
    del records[i : min(j + 1, i + 10)]
    assert named(renumber(records, how)) == [(i, "missing")]


@given(SIZES, st.data(), st.sampled_from(["rows", "all but numbers", "content"]))
def test_swapped_records_are_named_reordered_and_never_changed(
    size: int, data: st.DataObject, what: str
) -> None:
    records = archive(size)
    i, j = data.draw(st.lists(st.integers(0, size - 1), min_size=2, max_size=2, unique=True))
    fields = {
        "rows": ["seq", "subject", "data", "hash", "previous_hash"],
        "content": ["subject", "data"],
    }
    moved = fields.get(what, ["subject", "data", "hash", "previous_hash"])
    a, b = records[i], records[j]
    records[i] = changed(a, **{name: getattr(b, name) for name in moved})
    records[j] = changed(b, **{name: getattr(a, name) for name in moved})
    found = named(records)
    assert found
    assert {wrong for _, wrong in found} == {"reordered"}
    assert {index for index, _ in found} <= {i, j}


@given(SIZES, st.data(), HOW, st.booleans())
def test_an_inserted_record_is_named(
    size: int, data: st.DataObject, how: str, linked: bool
) -> None:
    records = archive(size)
    i = data.draw(st.integers(0, size - 2))
    before = records[i - 1].hash if i else records[0].previous_hash
    forged = Record(
        index=i,
        seq=i + 1,
        subject="facts.quota",
        data=b"forged",
        at_ns=0,
        hash="e" * 64,
        previous_hash=before,
    )
    records.insert(i, own_hash(forged) if linked else forged)
    assert named(renumber(records, how)) == [(i, "inserted")]


@given(SIZES, HOW)
def test_of_two_records_for_the_last_place_one_is_named_inserted(size: int, how: str) -> None:
    records = archive(size)
    forged = Record(
        index=size - 1,
        seq=size,
        subject="facts.quota",
        data=b"forged",
        at_ns=0,
        hash="",
        previous_hash=records[-1].previous_hash,
    )
    records.insert(size - 1, own_hash(forged))
    assert [wrong for _, wrong in named(renumber(records, how))] == ["inserted"]


@given(SIZES, st.data(), HOW)
def test_a_duplicated_record_is_named_inserted(size: int, data: st.DataObject, how: str) -> None:
    records = archive(size)
    i, j = data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size))
    records.insert(j, records[i])
    found = look(renumber(records, how))
    assert {finding.wrong for finding in found} == {"inserted"} or (j == size and found)


@given(SIZES, st.data(), st.integers(1, 50))
def test_a_record_under_another_number_is_named(size: int, data: st.DataObject, by: int) -> None:
    records = archive(size)
    records[-1] = changed(
        records[-1],
        index=records[-1].index + by,
        seq=records[-1].seq + data.draw(st.sampled_from([0, by])),
    )
    assert named(records) == [(size - 1, "changed")]


@given(SIZES, st.integers(1, 1 << 62))
def test_a_forged_record_far_behind_the_end_is_named_whatever_its_number(
    size: int, by: int
) -> None:
    records = archive(size)
    index = size + by
    records.append(
        own_hash(
            Record(
                index=index,
                seq=index + 1,
                subject="facts.quota",
                data=b"forged",
                at_ns=0,
                hash="",
                previous_hash=records[-1].hash,
            )
        )
    )
    assert named(records)[0] == (size, "missing")


@given(SIZES, st.data())
def test_many_edits_at_once_never_pass(size: int, data: st.DataObject) -> None:
    clean = archive(size)
    order = data.draw(st.lists(st.sampled_from(clean), max_size=size))
    if order != clean[: len(order)]:
        assert look(order)


@given(SIZES, st.data(), st.sampled_from(["data", "data cut", "subject"]))
def test_a_history_written_anew_no_longer_has_any_hash_that_was_noted_after_the_edit(
    size: int, data: st.DataObject, edit: str
) -> None:
    records = archive(size)
    i = data.draw(st.integers(0, size - 1))
    noted = {record.seq: record.hash for record in records[i:]}
    records[i] = EDITS[edit](records[i])
    entries = [Entry(record.seq, record.subject, record.data) for record in records]
    forged = [
        changed(r, hash=x.hash, previous_hash=x.previous_hash)
        for r, x in zip(records, extend(None, entries), strict=True)
    ]
    assert look(forged) == []
    assert all(record.hash != noted.get(record.seq) for record in forged)


@given(st.binary(max_size=200))
def test_no_bytes_can_stop_the_reading(data: bytes) -> None:
    assert read(1, "facts.node.n1", data).at_ns >= 0
