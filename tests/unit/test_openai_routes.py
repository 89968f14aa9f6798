"""The endpoints that pass through: what ends their streams, and how their tokens are counted."""

import json
import re

import pytest

from services.api_gateway.openai import request
from services.api_gateway.openai.clients import is_openai
from services.api_gateway.openai.events import Events, usage_of
from services.api_gateway.openai.routes import CHAT, EMBEDDINGS, RESPONSES, ROUTES

TEXT = rb"\"type\":\"response.completed\""
DELTA = b'data: {"type":"response.output_text.delta","delta":"' + TEXT + b'"}\n\n'
USAGE = b'{"input_tokens":5,"output_tokens":7,"total_tokens":12}'
COMPLETED = b'data: {"type": "response.completed","response":{"usage":' + USAGE + b"}}\n\n"


def worst(path: str, **fields: object) -> int:
    data = json.dumps({"model": "m", **fields}).encode()
    return request.worst_case_tokens(request.read(data), data, path, 100) - len(data)


@pytest.mark.parametrize("path", ROUTES)
def test_clients_of_every_endpoint_read_errors_in_openai_s_shape(path: str) -> None:
    assert is_openai({"path": path, "headers": []})


def test_a_stream_of_responses_ends_with_its_last_event_and_has_its_usage() -> None:
    events = Events(counts=True, ends=ROUTES[RESPONSES].ends)
    assert events.feed(DELTA) == DELTA and not events.done
    assert events.feed(COMPLETED) == COMPLETED and events.done
    assert events.usage is not None
    assert (events.usage.inputs, events.usage.outputs, events.usage.tokens) == (5, 7, 12)


@pytest.mark.parametrize("word", ["incomplete", "failed", "completed"])
def test_each_last_event_of_responses_ends_the_stream(word: str) -> None:
    events = Events(ends=ROUTES[RESPONSES].ends)
    events.feed(f'data: {{"type":"response.{word}"}}\n\n'.encode())
    assert events.done


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/audio/speech", "speech.audio.done"),
        ("/v1/audio/transcriptions", "transcript.text.done"),
        ("/v1/audio/translations", "transcript.text.done"),
        ("/v1/images/generations", "image_generation.completed"),
        ("/v1/images/edits", "image_edit.completed"),
    ],
)
def test_streams_of_media_end_with_their_own_event(path: str, last: str) -> None:
    found: re.Pattern[bytes] | None = ROUTES[path].ends
    events = Events(ends=found)
    events.feed(b'data: {"type":"' + last.replace("done", "delta").encode() + b'.x"}\n\n')
    assert not events.done
    events.feed(b'data: {"type":"' + last.encode() + b'"}\n\n')
    assert events.done


def test_a_server_that_sends_done_ends_such_a_stream_too() -> None:
    events = Events(ends=ROUTES["/v1/audio/transcriptions"].ends)
    events.feed(b"data: [DONE]\n\n")
    assert events.done


def test_a_request_to_responses_is_bounded_by_its_own_field() -> None:
    assert worst(RESPONSES) == 100 and worst(RESPONSES, max_output_tokens=7) == 7
    body = request.with_bound(b'{"model":"m"}', 9, RESPONSES)
    assert json.loads(body) == {"model": "m", "max_output_tokens": 9}


@pytest.mark.parametrize("path", [EMBEDDINGS, "/v1/rerank", "/v1/score", "/tokenize"])
def test_requests_without_generated_text_reserve_their_body(path: str) -> None:
    assert worst(path) == 0


def test_only_streams_that_need_it_ask_for_usage() -> None:
    assert [path for path, route in ROUTES.items() if route.counts_on_request] == [
        CHAT,
        "/v1/completions",
    ]


def test_the_prompt_of_responses_is_what_its_server_reads_first() -> None:
    fields = request.read(b'{"model":"m","input":"i","tools":[1],"instructions":"do"}')
    assert fields.text(RESPONSES) == b'"do"[1]"i"'


@pytest.mark.parametrize(
    ("body", "inputs", "tokens"),
    [
        (b'{"usage":{"total_tokens":9}}', 9, 9),
        (b'{"usage":{"prompt_tokens":5,"total_tokens":5}}', 5, 5),
        (b'{"usage":{"input_tokens":5,"output_tokens":7}}', 5, 12),
        (b'{"usage":{"type":"duration","seconds":3}}', 0, 0),
    ],
)
def test_usage_is_read_in_each_of_its_forms(body: bytes, inputs: int, tokens: int) -> None:
    found = usage_of(body)
    assert found is not None and (found.inputs, found.tokens) == (inputs, tokens)
