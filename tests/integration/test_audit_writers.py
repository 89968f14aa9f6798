"""Readers of the archive believe a fact only from its writer, and no commit of a node stops it."""

import asyncio
from collections import Counter

import pytest

from libs.common.transport.log import Entry
from services.audit.chain.chain import extend
from services.audit.chain.verify import verify
from services.audit.export.events import BEGINNING
from services.audit.export.feed import take
from services.audit.store import reading
from services.audit.store import store as store_module
from services.audit.store.store import Store
from tests.integration.audit_world import commit, entries, entry, tamper, wrongs


def test_commits_about_a_job_are_found_from_its_first_one_by_a_core_writer_on(
    store: Store,
) -> None:
    def node(seq: int, kind: str, node_id: str) -> Entry:
        return commit(
            seq, {"kind": kind, "job_id": "job-4", "node_id": node_id}, subject="facts.node.n1"
        )

    early = [node(seq, "job.started", "n1") for seq in (1, 2, 3)]
    late = [node(5, "job.started", "n1"), node(6, "job.closed", "n2"), entry(7)]
    store.append([*early, entry(4), *late])
    assert store.commits_about("job-4", 0, 10) == [4, 5]
    assert store.commits_about("job-4", 0, 1) == [4]
    assert store.commits_about("job-4", 4, 10) == [5]
    assert store.commits_about("job-5", 0, 10) == []


def test_facts_are_read_only_from_the_subjects_of_their_writers(store: Store) -> None:
    charge = {"kind": "usage.charged", "job_id": "j", "tenant": "a"}
    lost = {"kind": "node.lost", "node_id": "n1"}
    there = {"kind": "node.registered", "node_id": "n1"}
    writers = ("node.n1", "node.n2", "scheduler", "quota", "gateway.a")
    store.append(
        [
            commit(seq, charge, lost, there, subject=f"facts.{writer}")
            for seq, writer in enumerate(writers, 1)
        ]
    )
    kinds = ("usage.charged", "node.lost", "node.registered")
    assert [[each.seq for each in store.of_kinds([kind], 0, 1_000)] for kind in kinds] == [
        [4],
        [3],
        [1],
    ]
    assert store.has(1, ["usage.charged"], 3, 5)
    assert not store.has(2, ["usage.charged"], 0, 6)


def test_a_batch_is_stored_in_portions_that_an_interruption_leaves_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "PORTION_ROWS", 4)
    assert store.append_portion(entries(1, 9)) == (2, extend(None, entries(1, 2)))
    assert store.append_portion(entries(1, 9)) == (4, extend(None, entries(1, 4))[2:])
    assert store.append(entries(1, 9)) == extend(None, entries(1, 9))[4:]
    assert asyncio.run(verify(store)).findings == ()


def test_a_commit_of_a_node_above_its_bounds_is_archived_without_facts_and_verified(
    store: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in an archive of a version that had no such bounds."""
    many = [{"kind": "a"}] * (reading.NODE_FACTS_MAX + 1)
    with monkeypatch.context() as earlier:
        earlier.setattr(reading, "NODE_FACTS_MAX", 1 << 30)
        store.append([commit(1, *many, subject="facts.node.n1"), entry(2)])
    store.append([commit(3, *many, subject="facts.node.n1"), entry(4)])
    assert Counter(row.seq for row in store.facts_of(range(1, 5))) == {1: len(many), 2: 2, 4: 2}
    assert asyncio.run(verify(store)).findings == ()
    batch = take(store=store, source="c", after=BEGINNING, count_max=99, bytes_max=1 << 30)
    assert [name for name, _ in batch.events] == ["1-0", "2-0", "2-1", "3-0", "4-0", "4-1"]
    tamper(url, "delete from facts where seq = 1 and position = 7")
    assert wrongs(asyncio.run(verify(store))) == [(0, 1, "facts differ")]
