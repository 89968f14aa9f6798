"""The manifest of a backup: it adds up, or it is not used."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Corrupt, Refused, TooNew
from services.audit.backup import manifest as m
from services.audit.chain.chain import GENESIS


def segment(first: int, last: int) -> m.Segment:
    return m.Segment(name=f"{first}-{last}", sealed_bytes=1, first=first, last=last)


def manifest(*log: m.Segment, seq: int, chain: str = "c") -> m.Manifest:
    return m.Manifest(cluster_id="c", root="r", seq=seq, chain=chain, at="now", muster="1", log=log)


def test_a_manifest_is_read_as_it_was_written() -> None:
    bucket = m.Bucket(stream="KV_X", config="{}", created="t", last=9, segments=(segment(1, 9),))
    written = msgspec.structs.replace(
        manifest(segment(1, 4), segment(5, 7), seq=7), buckets=(bucket,), files=segment(0, 0)
    )
    assert m.decode(m.encode(written)) == written
    assert [each.name for each in written.segments] == ["1-4", "5-7", "1-9", "0-0"]


@pytest.mark.parametrize(
    "wrong",
    [
        manifest(segment(2, 4), seq=4),
        manifest(segment(1, 4), segment(6, 7), seq=7),
        manifest(segment(1, 4), segment(4, 7), seq=7),
        manifest(segment(1, 4), seq=5),
        manifest(segment(1, 0), seq=0),
        manifest(seq=0),
        msgspec.structs.replace(manifest(segment(1, 4), seq=4), format="other"),
    ],
)
def test_a_manifest_with_gaps_is_refused(wrong: m.Manifest) -> None:
    with pytest.raises(Corrupt, match="does not add up"):
        m.decode(m.encode(wrong))


def test_a_manifest_of_an_empty_log_adds_up() -> None:
    assert m.decode(m.encode(manifest(seq=0, chain=GENESIS))).seq == 0


def test_a_manifest_of_a_later_format_is_too_new() -> None:
    later = msgspec.structs.replace(manifest(segment(1, 4), seq=4), version=m.VERSION + 1)
    with pytest.raises(TooNew, match="a newer one"):
        m.decode(m.encode(later))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"format":"muster-backup"}'])
def test_other_bytes_are_no_manifest(data: bytes) -> None:
    with pytest.raises(Corrupt, match="cannot be read"):
        m.decode(data)


def test_the_place_of_another_cluster_is_refused() -> None:
    known = manifest(segment(1, 4), seq=4)
    m.check_same_cluster(known, "c", "r", "here")
    with pytest.raises(Refused, match="another cluster"):
        m.check_same_cluster(known, "d", "other", "here")


@given(st.integers(1, 20), st.integers(0, 20), st.sets(st.integers(0, 45)), st.integers(0, 45))
def test_live_ranges_hold_what_was_not_removed(
    first: int, more: int, removed: set[int], seq: int
) -> None:
    last = first + more - 1
    ranges = m.live_ranges(first, last, removed)
    assert m.is_live(ranges, seq) == (first <= seq <= last and seq not in removed)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(ranges))


def test_a_segment_without_live_messages_is_dropped() -> None:
    segments = (segment(1, 4), segment(5, 9))
    assert m.kept_segments(segments, ((4, 4), (20, 30))) == segments[:1]
    assert m.kept_segments(segments, ()) == ()
