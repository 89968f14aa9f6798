"""Lines from pieces, and the places where a follower continues after a broken connection."""

from base64 import b64encode
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from libs.client.lines import LineBuffer, rest_of, text_of
from libs.client.position import Position
from libs.client.sequence import Sequence


@given(st.lists(st.binary(max_size=9), max_size=9), st.lists(st.integers(0, 60), max_size=9))
def test_lines_do_not_depend_on_the_pieces(lines: list[bytes], cuts: list[int]) -> None:
    lines = [line.replace(b"\n", b"") for line in lines]
    data = b"\n".join(lines)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    buffer = LineBuffer()
    found = [line for begin, end in pairwise(places) for line in buffer.feed(data[begin:end])]
    assert [*found, *buffer.end()] == (lines[:-1] if lines and not lines[-1] else lines)
    assert buffer.end() == []


def test_a_line_without_an_end_is_given_in_parts() -> None:
    buffer = LineBuffer(bytes_max=4)
    assert buffer.feed(b"abcdefghi") == [b"abcd", b"efgh"]
    assert buffer.end() == [b"i"]


def test_the_rest_of_each_stream_is_given_once() -> None:
    buffers = {"stdout": LineBuffer(), "stderr": LineBuffer()}
    buffers["stderr"].feed(b"a\nb")
    assert (rest_of(buffers), rest_of(buffers)) == (["b"], [])


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert text_of(b"caf\xc3\xa9\r") == "café"
    assert text_of(b"\xff") == "\ufffd"


def frame(offset: int, data: bytes) -> dict[str, object]:
    return {"stream": "stdout", "offset": offset, "data": b64encode(data).decode()}


def test_output_that_was_seen_is_left_out() -> None:
    position = Position({})
    assert not position.begin(1)
    assert position.take(frame(0, b"abc")) == b"abc"
    assert position.take(frame(1, b"bcd")) == b"d"
    assert position.take(frame(0, b"ab")) == b""
    assert position.offsets == {"stdout": 4, "stderr": 0}


def test_the_output_of_the_next_attempt_begins_at_its_first_byte() -> None:
    position = Position({"stdout": 2})
    position.begin(1)
    position.take(frame(0, b"abc"))
    assert position.begin(2)
    assert position.take(frame(0, b"xy")) == b"xy"
    assert not position.begin(1) and position.attempt == 2


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.lists(st.integers(0, 9), max_size=9))
def test_a_follower_gives_each_fact_once_whatever_breaks(
    sizes: list[int], lives: list[int]
) -> None:
    """Commits have `sizes` facts; connection N breaks after lives[N] facts."""
    facts = [(seq, number) for seq, size in enumerate(sizes, 1) for number in range(size)]
    sequence, given_facts = Sequence(0), []
    for life in [*lives, len(facts)]:
        after = sequence.after
        sequence.begin()
        served = [fact for fact in facts if fact[0] > after]
        given_facts += [fact for fact in served[:life] if sequence.is_new(fact[0])]
    assert given_facts == facts
