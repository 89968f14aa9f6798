"""Frames are JSON objects in whole text messages, as a WebSocket library reads them."""

import json
from typing import Any

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.uri import parse_uri

from services.api_gateway.ws import frames
from services.api_gateway.ws.event_lines import EVENT_BYTES_MAX, EventLines, Line, TooLong
from services.api_gateway.ws.frames import Name


def received(data: bytes) -> list[Any]:
    """The messages that a real client reads."""
    client = ClientProtocol(parse_uri("ws://x"), max_size=None)
    client.state = State.OPEN
    client.parser = client.parse()
    next(client.parser)
    client.receive_data(data)
    found = [each for each in client.events_received() if isinstance(each, Frame)]
    assert all(each.fin and each.opcode is Opcode.TEXT for each in found)
    return [json.loads(each.data) for each in found]


@pytest.mark.parametrize("size", [0, 1, 60, 90, 200, 65_000, 66_000, 200_000])
def test_a_client_reads_messages_of_every_length(size: int) -> None:
    frame = Name("a").frame("job", 7, frames.encoded("x" * size))
    assert received(frame) == [{"id": "a", "event": "job", "seq": 7, "data": "x" * size}]


def test_messages_that_are_joined_stay_apart() -> None:
    joined = frames.pong(3, 9) + frames.alive(9) + Name('"').frame("end", 1, b"{}")
    assert received(joined) == [
        {"event": "pong", "n": 3, "seq": 9},
        {"event": "alive", "seq": 9},
        {"id": '"', "event": "end", "seq": 1, "data": {}},
    ]


def test_an_error_names_its_field_if_it_has_one() -> None:
    with_field, without = (
        frames.error("a", 5, 422, detail="after: wrong", field="after"),
        frames.error("", 5, 429, detail="too many"),
    )
    assert received(with_field + without) == [
        {
            "id": "a",
            "event": "error",
            "seq": 5,
            "data": {"status": 422, "detail": "after: wrong", "field": "after"},
        },
        {"id": "", "event": "error", "seq": 5, "data": {"status": 429, "detail": "too many"}},
    ]


def test_the_first_frame_names_the_principal() -> None:
    assert received(frames.hello(4, {"user": "ada"})) == [
        {"event": "hello", "seq": 4, "data": {"user": "ada"}}
    ]


def test_events_are_taken_out_of_a_stream_however_it_is_cut() -> None:
    stream = b': wait\n\ndata: {"a":1}\r\n\r\nevent: x\ndata: b\ndata: c\n\ndata: [DONE]\n\n\n\n'
    expected = [Line(b"wait", is_comment=True), Line(b'{"a":1}'), Line(b"b\nc")]
    for size in range(1, len(stream) + 1):
        lines = EventLines()
        found = [
            line
            for first in range(0, len(stream), size)
            for line in lines.feed(stream[first : first + size])
        ]
        assert found == expected, size


def test_an_event_that_does_not_end_is_refused() -> None:
    lines = EventLines()
    lines.feed(b"data: " + b"x" * (EVENT_BYTES_MAX - 6))
    with pytest.raises(TooLong):
        lines.feed(b"x")
