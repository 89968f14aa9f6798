"""Server-sent events cut anywhere: only whole ones go on, all of them do, and the usage is found
wherever the cut was.
"""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api_gateway.openai.events import EVENT_BYTES_MAX, Events, Usage, usage_of

WORDS = [b'data: {"choices":[{"delta":{"content":"w%d"}}]}\n\n' % number for number in range(3)]
EXTRA = (
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def fed(events: Events, stream: bytes, cut: int) -> list[bytes]:
    return [events.feed(stream[:cut]), events.feed(stream[cut:]), events.flush()]


@pytest.mark.parametrize("returns", [False, True], ids=["LF", "CRLF"])
def test_a_stream_cut_at_any_byte_goes_on_in_whole_events_only(returns: bool) -> None:
    stream = b"".join([*WORDS, EXTRA, DONE])
    stream = stream.replace(b"\n", b"\r\n") if returns else stream
    end = b"\r\n\r\n" if returns else b"\n\n"
    for cut in range(len(stream) + 1):
        events = Events()
        pieces = fed(events, stream, cut)
        assert b"".join(pieces) == stream
        assert all(not piece or piece.endswith(end) for piece in pieces), cut
        assert events.done


@pytest.mark.parametrize("returns", [False, True], ids=["LF", "CRLF"])
def test_the_extra_chunk_is_counted_and_held_back_wherever_the_stream_is_cut(returns: bool) -> None:
    stream, left = b"".join([*WORDS, EXTRA, DONE]), b"".join([*WORDS, DONE])
    if returns:
        stream, left = stream.replace(b"\n", b"\r\n"), left.replace(b"\n", b"\r\n")
    for cut in range(len(stream) + 1):
        events = Events(counts=True, strips=True)
        assert b"".join(fed(events, stream, cut)) == left
        assert events.usage == Usage(5, 7, 12)


def test_the_extra_chunk_that_the_client_asked_for_stays() -> None:
    events = Events(counts=True)
    stream = b"".join([*WORDS, EXTRA, DONE])
    assert b"".join(fed(events, stream, 40)) == stream
    assert events.usage == Usage(5, 7, 12)


def test_usage_beside_text_is_counted_and_its_event_stays() -> None:
    event = (
        b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1,"completion_tokens":2}}\n\n'
    )
    events = Events(counts=True, strips=True)
    assert events.feed(event) == event
    assert events.usage is not None and events.usage.tokens == 3


def test_text_that_looks_like_the_end_or_like_usage_is_neither() -> None:
    said = (
        b"data: "
        + json.dumps({"choices": [{"delta": {"content": '[DONE] "usage"'}}]}).encode()
        + b"\n\n"
    )
    events = Events(counts=True, strips=True)
    assert events.feed(said) == said
    assert not events.done and events.usage is None


def test_invalid_json_in_a_stream_is_passed_on() -> None:
    events = Events(counts=True, strips=True)
    assert events.feed(b'data: {"usage" what\n\n: ping\n\n') == b'data: {"usage" what\n\n: ping\n\n'


def test_a_last_event_without_its_blank_line_is_flushed() -> None:
    events = Events()
    assert events.feed(WORDS[0] + b"data: [DONE]\n") == WORDS[0]
    assert events.flush() == b"data: [DONE]\n\n" and events.done


def chunk(index: int, reason: str | None) -> bytes:
    return (
        b"data: "
        + json.dumps({"choices": [{"index": index, "delta": {}, "finish_reason": reason}]}).encode()
        + b"\n\n"
    )


def test_a_stream_is_finished_by_its_finish_reason_wherever_it_is_cut() -> None:
    stream = chunk(0, None) + chunk(0, "stop")
    for cut in range(len(stream) + 1):
        events = Events()
        fed(events, stream, cut)
        assert events.finished and not events.done


def test_generated_text_that_looks_like_a_finish_reason_finishes_nothing() -> None:
    said = {"choices": [{"delta": {"content": '"finish_reason": "stop"'}, "finish_reason": None}]}
    events = Events()
    events.feed(b"data: " + json.dumps(said).encode() + b"\n\n")
    assert not events.finished


@pytest.mark.parametrize("choices", [2, 0])
def test_several_choices_are_finished_when_each_of_them_is(choices: int) -> None:
    events = Events(choices=choices)
    events.feed(chunk(0, None) + chunk(1, None) + chunk(0, "stop"))
    assert not events.finished
    events.feed(b'data: {"choices": 5}\n\n' + chunk(1, "length"))
    assert events.finished


def test_a_choice_that_never_began_is_not_finished() -> None:
    events = Events(choices=2)
    events.feed(chunk(0, None) + chunk(0, "stop"))
    assert not events.finished
    events.feed(chunk(1, "stop"))
    assert events.finished


@pytest.mark.parametrize("choices", [1, 2])
def test_an_empty_finish_reason_finishes_nothing(choices: int) -> None:
    events = Events(choices=choices)
    events.feed(chunk(0, "") + chunk(1, ""))
    assert not events.finished
    events.feed(chunk(0, "stop") + chunk(1, "stop"))
    assert events.finished


@pytest.mark.parametrize("returns", [False, True], ids=["LF", "CRLF"])
def test_half_an_event_is_not_flushed(returns: bool) -> None:
    event = b"event: chunk\n" + chunk(0, "stop")
    event = event.replace(b"\n", b"\r\n") if returns else event
    for cut in range(len(event)):
        events = Events(counts=True)
        assert events.feed(WORDS[0] + event[:cut]) == WORDS[0]
        is_whole = event[:cut].rstrip().endswith(b"}]}")
        assert events.flush() == (event[:cut].rstrip() + b"\n\n" if is_whole else b"")
        assert events.finished == is_whole


def test_an_error_that_is_no_event_is_flushed() -> None:
    for said, is_error in ((b"out of memory", True), (b'{"error": "out of memory"}', False)):
        events = Events()
        assert events.feed(said) == b""
        assert events.flush(is_error) == said + b"\n\n"


def test_the_end_of_an_event_that_was_passed_on_in_pieces_ends_its_line() -> None:
    events = Events()
    events.feed(b"data: " + b"x" * EVENT_BYTES_MAX)
    assert events.feed(b"yy") == b"" and events.flush() == b"yy\n\n"
    events.feed(b"data: " + b"x" * EVENT_BYTES_MAX)
    assert events.flush() == b"\n\n"
    events.feed(b"data: " + b"x" * EVENT_BYTES_MAX)
    events.feed(b"\n\n")
    events.feed(b"data: {")
    assert events.flush() == b""


def test_an_event_without_end_is_not_gathered_for_ever() -> None:
    events = Events()
    assert events.feed(b"data: " + b"x" * EVENT_BYTES_MAX) != b""


def test_usage_of_an_answer_is_read_and_what_has_none_has_none() -> None:
    assert usage_of(b'{"usage":{"prompt_tokens":3,"total_tokens":3},"data":[]}') == Usage(3, 0, 3)
    assert [usage_of(body) for body in (b"{}", b"no json", b'{"usage":5}', b'{"usage":null}')] == [
        None
    ] * 4


@given(
    st.lists(
        st.sampled_from(
            (
                b'data: {"choices":[{"index":0}],"usage":null}\n\n',
                b'data: {"choices":[],"usage":{"total_tokens":7}}\n\n',
                b'data: {"choices":[{"index":0}],"usage":{"total_tokens":3}}\n\n',
                b'data: {"choices":[],\ndata: "usage":{"total_tokens":5,"usage":{}}}\n\n',
                b'data: "usage": {\n\n',
                b": comment\n\n",
            )
        ),
        max_size=8,
    ),
    st.booleans(),
)
def test_usage_is_read_the_same_whatever_ends_the_lines(events: list[bytes], strips: bool) -> None:
    plain, returns = Events(counts=True, strips=strips), Events(counts=True, strips=strips)
    whole = b"".join(events)
    found = plain.feed(whole)
    assert found == returns.feed(whole.replace(b"\n", b"\r\n")).replace(b"\r\n", b"\n")
    assert plain.usage == returns.usage


def test_a_usage_counts_at_most_the_allowed_tokens() -> None:
    usage = Usage(prompt_tokens=5, completion_tokens=7)
    assert usage.at_most(12) is usage
    for most, inputs, outputs in ((11, 5, 6), (3, 3, 0), (0, 0, 0)):
        found = usage.at_most(most)
        assert (found.inputs, found.outputs, found.tokens) == (inputs, outputs, most)
