"""A state frozen in parts thaws to the same state, and so does a snapshot that was split."""

import msgspec
import pytest

from libs.common.model import JobId
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot
from services.api_gateway.moments.frozen import (
    PART_ENTRIES,
    Part,
    frozen,
    head_of,
    is_whole,
    size_of,
    split,
    thawed,
)
from tests.unit.test_snapshot import history


def last(parts: list[Part]) -> Cluster:
    return list(thawed(parts))[-1]


@pytest.mark.parametrize("seed", range(3))
def test_a_frozen_state_thaws_to_the_same_state(seed: int) -> None:
    cluster = history(seed).cluster
    assert msgspec.msgpack.encode(last(list(frozen(cluster)))) == msgspec.msgpack.encode(cluster)


@pytest.mark.parametrize("seed", range(3))
def test_a_split_snapshot_thaws_to_the_same_state(seed: int) -> None:
    cluster = history(seed).cluster
    head = head_of(snapshot.encode(cluster))
    assert head is not None and is_whole(head) and head.seq == cluster.seq
    parts = list(split(head.state))
    assert msgspec.msgpack.encode(last(parts)) == msgspec.msgpack.encode(cluster)


def test_no_part_holds_more_than_a_few_entries() -> None:
    cluster = Cluster(ended={JobId(f"j{number}"): number for number in range(3 * PART_ENTRIES)})
    tables = [part for part in frozen(cluster) if part.field == "ended"]
    assert [len(msgspec.msgpack.decode(part.data)) for part in tables] == [PART_ENTRIES] * 3
    assert size_of(tables) == sum(len(part.data) for part in tables)


def test_a_thawed_state_shares_nothing_with_the_first_one() -> None:
    cluster = history(2).cluster
    before = msgspec.msgpack.encode(cluster)
    last(list(frozen(cluster))).jobs.clear()
    assert msgspec.msgpack.encode(cluster) == before


def test_no_parts_are_the_empty_state() -> None:
    assert last([]) == Cluster()


def test_damaged_parts_are_refused() -> None:
    with pytest.raises(msgspec.DecodeError):
        last([Part("jobs", b"\xc1")])
    with pytest.raises(msgspec.DecodeError):
        list(split(b"\xc1"))


def test_a_large_table_is_split_into_parts_too() -> None:
    cluster = Cluster(ended={JobId(f"j{number}"): number for number in range(2 * PART_ENTRIES + 3)})
    parts = [part for part in split(msgspec.msgpack.encode(cluster)) if part.field == "ended"]
    sizes = [len(msgspec.msgpack.decode(part.data)) for part in parts]
    assert sizes == [PART_ENTRIES, PART_ENTRIES, 3]
    assert last(parts).ended == cluster.ended


def test_a_damaged_snapshot_and_one_of_another_version_are_not_used() -> None:
    data = snapshot.encode(history(1).cluster)
    head = head_of(data[:-1] + bytes([data[-1] ^ 1]))
    assert head is not None and not is_whole(head)
    assert head_of(b"\xc1") is None and head_of(b"") is None
    assert head_of(data[:1] + b"\x01" + data[2:]) is None
