"""Frames of streamed answers, however their bytes are cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api_gateway.rpc.streams import (
    Lines,
    Oversized,
    Served,
    ServedEvents,
    change_of,
    parsed,
)

STREAM = (
    b": still here\n\nevent: job\nid: 7\ndata: {}\n\ndata: a\r\ndata: b\r\n\r\n"
    b"ignored\n\nevent: ready\nid: 9\ndata: {}\n\nevent: cut"
)
EVENTS = [Served("job", "7", b"{}"), Served("", "", b"a\nb"), Served("ready", "9", b"{}")]


@given(st.lists(st.integers(1, len(STREAM) - 1), unique=True))
def test_events_are_found_wherever_the_stream_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    events = ServedEvents()
    found = [each for begin, end in pairwise(places) for each in events.add(STREAM[begin:end])]
    assert [each for each in found if each.data] == EVENTS


def test_a_line_waits_for_its_end() -> None:
    lines = Lines()
    assert lines.add(b"a\nb") == [b"a"]
    assert lines.add(b"c\n\n") == [b"bc", b""]


@pytest.mark.parametrize(
    "pieces", [[b"x"] * 11, [b"x" * 11 + b"\n"], [b"a\n" + b"x" * 11 + b"\nb"]]
)
def test_a_line_above_the_bound_is_refused(pieces: list[bytes]) -> None:
    lines = Lines(10)
    assert lines.add(b"y" * 10 + b"\n") == [b"y" * 10]
    with pytest.raises(Oversized, match=r"10 bytes.*CallModel"):
        for piece in pieces:
            lines.add(piece)


@pytest.mark.parametrize("line", [b"data: abc\n", b"data:\n", b"x" * 9, b"data: abc\nid: abcde\n"])
def test_an_event_above_the_bound_is_refused(line: bytes) -> None:
    events = ServedEvents(12)
    with pytest.raises(Oversized):
        for _ in range(20):
            list(events.add(line))


def test_fields_that_nobody_reads_are_not_kept() -> None:
    events = ServedEvents(20)
    assert not [each for number in range(100) for each in events.add(b"x%d: abc\n" % number)]
    assert list(events.add(b"data: a\n\n")) == [Served("", "", b"a")]


@pytest.mark.parametrize(
    ("data", "found"), [(b'{"a":1}', {"a": 1}), (b"[1]", None), (b"{", None), (b"\xff", None)]
)
def test_only_objects_are_frames(data: bytes, found: object) -> None:
    assert parsed(data) == found


@pytest.mark.parametrize(
    ("served", "found"),
    [
        (Served("job", "7", b'{"id":"j"}'), {"event": "job", "seq": 7, "job": {"id": "j"}}),
        (Served("ready", "x", b"{}"), {"event": "ready", "seq": 0, "ready": {}}),
        (Served("colour", "7", b"{}"), None),
        (Served("job", "7", b"no"), None),
    ],
)
def test_a_change_is_an_event_of_a_known_kind(served: Served, found: object) -> None:
    assert change_of(served) == found


def test_what_waits_for_its_rest_has_a_size() -> None:
    lines = Lines()
    assert lines.add(b"one\ntw") == [b"one"] and lines.size == 2
    events = ServedEvents()
    assert list(events.add(b"event: job\ndata: {}\nda")) == [] and events.size == 7
    assert len(list(events.add(b"ta: x\n\n"))) == 1 and events.size == 0
