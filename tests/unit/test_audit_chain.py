"""The hash chain, the schema-free reading of commits, and the text of a report."""

from collections.abc import Iterator

import msgpack
import pytest

from libs.common.errors import Corrupt
from libs.common.facts import COMMIT_BYTES_MAX, packing
from libs.common.transport.log import Entry
from services.audit.chain.chain import GENESIS, extend, is_link_of, link
from services.audit.chain.segments import Finding
from services.audit.chain.verify import Report, render
from services.audit.store.reading import (
    NODE_BYTES_MAX,
    NODE_FACTS_MAX,
    UNREADABLE,
    FactRow,
    Weight,
    earlier,
    portions,
    read,
)

ENTRIES = [Entry(seq, "facts.scheduler", b"commit %d" % seq) for seq in range(1, 6)]


def commit(*facts: object, at_ns: object = 7) -> bytes:
    return bytes(msgpack.packb([1, 1, "scheduler", 1, 1, at_ns, 0, list(facts)]))


def test_a_chain_starts_at_genesis_and_each_link_names_the_one_before() -> None:
    links = extend(None, ENTRIES)
    assert [step.previous_hash for step in links] == [GENESIS] + [step.hash for step in links[:-1]]
    assert [(step.index, step.seq) for step in links] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]


def test_a_link_belongs_to_one_entry_only() -> None:
    head = extend(None, ENTRIES)[-1]
    assert is_link_of(head, ENTRIES[-1])
    assert not is_link_of(head, Entry(5, "facts.quota", ENTRIES[-1].data))
    assert not is_link_of(head, Entry(5, "facts.scheduler", b"of another history"))


def test_a_chain_is_the_same_however_it_was_cut_into_batches() -> None:
    first = extend(None, ENTRIES[:2])
    assert first + extend(first[-1], ENTRIES[2:]) == extend(None, ENTRIES)


def test_nothing_to_extend_gives_no_links() -> None:
    assert extend(None, []) == []


def test_the_meaning_of_a_link_never_changes() -> None:
    assert (
        link(seq=1, subject="facts.quota", data=b"\x01", index=0, previous_hash=GENESIS)
        == "97a06a87f4f29c92f612902035be5031071d60872333a28bf0adcc5e31bfceea"
    )


@pytest.mark.parametrize(
    "other",
    [
        (2, "facts.a", b"data", 0, GENESIS),
        (1, "facts.b", b"data", 0, GENESIS),
        (1, "facts.a", b"datb", 0, GENESIS),
        (1, "facts.a", b"data", 1, GENESIS),
        (1, "facts.a", b"data", 0, "1" * 64),
        (1, "facts.adat", b"a", 0, GENESIS),
        (1, "facts.a4:data", b"", 0, GENESIS),
    ],
)
def test_every_field_and_every_border_between_fields_is_under_the_hash(
    other: tuple[int, str, bytes, int, str],
) -> None:
    assert link(*other) != link(
        seq=1, subject="facts.a", data=b"data", index=0, previous_hash=GENESIS
    )


@pytest.mark.parametrize("wrong", [1, 2, 4, 0])
def test_a_gap_a_repetition_or_a_step_back_is_refused(wrong: int) -> None:
    head = extend(None, ENTRIES[:2])[-1]
    with pytest.raises(Corrupt, match="needs stream sequence 3"):
        extend(head, [Entry(wrong, "facts.scheduler", b"")])


def test_an_archive_that_begins_behind_the_logs_first_commit_is_refused() -> None:
    with pytest.raises(Corrupt, match="needs stream sequence 1"):
        extend(None, ENTRIES[1:])


def test_facts_are_read_whatever_their_kind() -> None:
    data = commit(
        {"kind": "job.placed", "job_id": "j1"},
        {"kind": "of.tomorrow", "node_id": "n1", "new": [1, {2: 3}]},
    )
    assert read(4, "facts.scheduler", data).facts == (
        FactRow(seq=4, position=0, kind="job.placed", job_id="j1", node_id=None, at_ns=7),
        FactRow(seq=4, position=1, kind="of.tomorrow", job_id=None, node_id="n1", at_ns=7),
    )


def test_a_commit_with_more_fields_than_we_know_is_read() -> None:
    data = bytes(msgpack.packb([9, 1, "w", 1, 0, 5, 0, [{"kind": "a.b"}], "new"]))
    assert read(1, "facts.scheduler", data).facts == (
        FactRow(seq=1, position=0, kind="a.b", job_id=None, node_id=None, at_ns=5),
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"not a commit",
        commit()[:-1],
        bytes(msgpack.packb([1, 2])),
        bytes(msgpack.packb({"facts": []})),
        commit("no map"),
        commit({"job_id": "without a kind"}),
        commit({"kind": 5}),
        commit({"kind": "k" * 256}),
        commit({"kind": "nul\0"}),
        commit(at_ns="late"),
        commit(at_ns=1 << 63),
        commit(at_ns=-1),
        b"\x91" * 5_000,
        b"\x81\x90\x01",
    ],
)
def test_a_commit_that_cannot_be_read_has_no_rows_and_stops_nothing(data: bytes) -> None:
    assert read(1, "facts.scheduler", data) == UNREADABLE


NODE = "facts.node.n1"
MANY = commit(*[{"kind": "a"}] * (NODE_FACTS_MAX + 1))
LARGE = commit({"kind": "a.b", "text": "x" * NODE_BYTES_MAX})


@pytest.mark.parametrize("data", [MANY, LARGE], ids=["many facts", "many bytes"])
def test_a_commit_above_the_bounds_of_a_node_has_no_rows_if_a_node_wrote_it(data: bytes) -> None:
    assert read(1, NODE, data) == UNREADABLE
    assert read(1, "facts.scheduler", data) == earlier(1, data) != UNREADABLE
    assert read(1, NODE, commit(*[{"kind": "a"}] * NODE_FACTS_MAX)) != UNREADABLE


def test_the_archive_reads_no_more_of_a_node_than_the_log_s_readers_do() -> None:
    assert (NODE_BYTES_MAX, NODE_FACTS_MAX) == (COMMIT_BYTES_MAX, packing.NODE_FACTS_MAX)


def test_portions_are_within_their_bounds_and_items_are_taken_when_they_are_needed() -> None:
    taken: list[int] = []

    def sizes() -> Iterator[int]:
        for size in (1, 2, 9, 1, 1):
            taken.append(size)
            yield size

    by_bytes = portions(sizes(), lambda size: Weight(size, 0), bytes_max=3, rows_max=0)
    assert next(by_bytes) == [1, 2]
    assert taken == [1, 2, 9]
    assert list(by_bytes) == [[9], [1, 1]]
    by_rows = portions(sizes(), lambda size: Weight(0, size), bytes_max=0, rows_max=3)
    assert list(by_rows) == [[1, 2], [9], [1, 1]]
    assert not list(portions([], lambda _: Weight(0, 0), bytes_max=0, rows_max=0))


def test_an_id_that_no_database_could_store_is_left_out() -> None:
    assert read(
        1, "facts.scheduler", commit({"kind": "a.b", "job_id": "x\0", "node_id": 3})
    ).facts == (FactRow(seq=1, position=0, kind="a.b", job_id=None, node_id=None, at_ns=7),)


def test_a_clean_report_is_one_line() -> None:
    compared = Report(3, "ab", streamed=3, since=1)
    assert render(compared) == (
        "3 commits checked, 3 compared with the stream: the chain is whole; head ab"
    )


def test_the_verdict_says_that_the_log_was_not_compared() -> None:
    assert render(Report(3, "ab")) == (
        "3 commits checked, not compared with the log: the chain is whole; head ab"
    )


def test_each_finding_is_one_line_and_the_summary_counts_them() -> None:
    report = Report(3, "ab", (Finding(1, 2, "changed", "why"),), more=4, streamed=2)
    assert render(report).splitlines() == [
        "index 1 seq 2: changed: why",
        "and 4 more findings",
        "3 commits checked, 2 compared with the stream: 5 findings; head ab",
    ]
