"""A broken stream's continuation: the next request, and one stream for the client."""

import json
from typing import Any

import pytest

from services.api_gateway.openai import request
from services.api_gateway.openai.continuation import (
    TEXT_BYTES_MAX,
    Continuation,
    continuation_of,
)
from services.api_gateway.openai.events import Usage
from services.api_gateway.openai.routes import CHAT, COMPLETIONS, EMBEDDINGS

MESSAGES = [{"role": "user", "content": "count"}]


def begin(path: str = CHAT, **fields: Any) -> Continuation | None:
    prompt = {"messages": MESSAGES} if path == CHAT else {"prompt": "count:"}
    body = json.dumps({"model": "m", "stream": True, **prompt, **fields}).encode()
    return continuation_of(path, request.read(body), body)


def begun(path: str = CHAT, **fields: Any) -> Continuation:
    found = begin(path, **fields)
    assert found is not None
    return found


def event(delta: dict[str, Any], *, id: str = "c-1", **choice: Any) -> bytes:
    found = {"index": 0, "delta": delta, "finish_reason": None, **choice}
    return b"data: %s\n\n" % json.dumps({"id": id, "created": 7, "choices": [found]}).encode()


def data(events: bytes) -> list[Any]:
    return [json.loads(line[6:]) for line in events.splitlines() if line.startswith(b"data: {")]


def test_the_next_replica_gets_the_text_as_a_last_message_to_continue() -> None:
    stream = begun(max_tokens=10, min_tokens=1, temperature=0.5)
    sent = event({"role": "assistant", "content": ""}) + event({"content": "one "})
    assert stream.passed(sent + event({"content": "two "})) == sent + event({"content": "two "})
    assert stream.can_continue()
    assert json.loads(stream.next_body()) == {
        "model": "m",
        "stream": True,
        "messages": [*MESSAGES, {"role": "assistant", "content": "one two "}],
        "max_tokens": 8,
        "min_tokens": 0,
        "temperature": 0.5,
        "continue_final_message": True,
        "add_generation_prompt": False,
    }


def test_an_empty_finish_reason_does_not_end_a_stream() -> None:
    stream = begun()
    stream.passed(event({"content": "one"}, finish_reason=""))
    assert stream.can_continue()


def test_a_stream_that_broke_before_its_first_text_is_asked_for_again() -> None:
    stream = begun()
    stream.passed(event({"role": "assistant", "content": ""}) + b": ping\n\n")
    assert json.loads(stream.next_body())["messages"] == MESSAGES
    assert "continue_final_message" not in json.loads(stream.next_body())


def test_a_completion_goes_on_at_the_end_of_its_prompt() -> None:
    stream = begun(COMPLETIONS, max_tokens=3)
    chunk = {"id": "c", "choices": [{"index": 0, "text": " one", "finish_reason": None}]}
    stream.passed(b"data: %s\n\n" % json.dumps(chunk).encode())
    found = json.loads(stream.next_body())
    assert found["prompt"] == "count: one" and found["max_tokens"] == 2
    assert "continue_final_message" not in found


def test_the_client_sees_one_stream_with_one_id_one_role_and_one_usage() -> None:
    stream = begun()
    stream.passed(event({"role": "assistant", "content": "one "}) + event({"content": "two "}))
    stream.next_body()
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12, "cached": 1}
    last = {"id": "c-2", "created": 8, "choices": [], "usage": usage}
    later = stream.passed(
        event({"role": "assistant", "content": "three"}, id="c-2")
        + b"data: %s\n\ndata: [DONE]\n\n" % json.dumps(last).encode()
    )
    first, counted = data(later)
    assert first["id"] == counted["id"] == "c-1" and counted["created"] == 7
    assert first["choices"][0]["delta"] == {"content": "three"}
    assert counted["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 5,
        "total_tokens": 12,
        "cached": 1,
    }
    assert later.endswith(b"data: [DONE]\n\n")
    assert stream.total(Usage(9, 3, 12)) == Usage(7, 5, 12)
    assert stream.total(None) is None


def test_a_second_break_continues_from_the_whole_text() -> None:
    stream = begun(max_completion_tokens=9)
    stream.passed(event({"content": "one "}))
    stream.next_body()
    stream.passed(event({"content": "two "}))
    found = json.loads(stream.next_body())
    assert found["messages"][-1]["content"] == "one two "
    assert found["max_completion_tokens"] == 7


def test_usage_of_one_replica_is_passed_on_as_it_came() -> None:
    assert begun().total(Usage(9, 3, 12)) == Usage(9, 3, 12)


@pytest.mark.parametrize(
    "delta", [{"tool_calls": [{"index": 0}]}, {"reasoning_content": "hm"}, {"refusal": "no"}]
)
def test_a_stream_with_more_than_text_is_not_continued(delta: dict[str, Any]) -> None:
    stream = begun()
    stream.passed(event({"content": "one"}) + event(delta))
    assert not stream.can_continue()


def test_empty_parts_beside_the_text_are_no_obstacle() -> None:
    stream = begun()
    stream.passed(event({"content": "one", "tool_calls": [], "reasoning_content": None}))
    assert stream.can_continue()


def test_a_finished_stream_is_not_continued() -> None:
    stream = begun()
    stream.passed(event({"content": "one"}) + event({}, finish_reason="stop"))
    assert not stream.can_continue()


def test_a_stream_with_no_token_left_is_not_continued() -> None:
    stream = begun(max_tokens=1)
    stream.passed(event({"content": "one"}))
    assert not stream.can_continue()


def test_a_stream_with_too_much_text_is_not_continued() -> None:
    stream = begun()
    stream.passed(event({"content": "x" * (TEXT_BYTES_MAX + 1)}))
    assert not stream.can_continue()


@pytest.mark.parametrize("odd", [b"data: {\n\n", b'data: {"choices": [{"text": 1}]}\n\n'])
def test_a_stream_with_an_event_that_cannot_be_read_is_not_continued(odd: bytes) -> None:
    stream = begun()
    stream.passed(event({"content": "one"}) + odd)
    assert not stream.can_continue()


@pytest.mark.parametrize(
    "odd", [b'data: {"choices": 3}\n\n', b'data: {"usage": []}\n\n', b": waking\n\n"]
)
def test_odd_events_of_a_later_replica_pass_as_they_came(odd: bytes) -> None:
    stream = begun()
    stream.next_body()
    assert data(stream.passed(odd)) == data(odd)


def test_an_error_event_of_a_later_replica_keeps_its_fields() -> None:
    stream = begun()
    stream.passed(event({"content": "one"}))
    stream.next_body()
    assert data(stream.passed(b'data: {"error": {"message": "full"}}\n\n')) == [
        {"error": {"message": "full"}}
    ]


def test_choices_without_a_delta_stay_as_they_are() -> None:
    stream = begun(COMPLETIONS)
    stream.next_body()
    chunk = {"choices": [{"index": 0, "text": "one", "finish_reason": None}]}
    assert data(stream.passed(b"data: %s\n\n" % json.dumps(chunk).encode())) == [chunk]


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"stream": False},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": 3}},
        {"response_format": "json"},
        {"structured_outputs": {"regex": "a"}},
        {"tool_choice": "required"},
        {"continue_final_message": True},
        {"messages": "none"},
    ],
)
def test_a_request_whose_answer_is_more_than_free_text_has_no_continuation(
    fields: dict[str, Any],
) -> None:
    assert begin(**fields) is None


def test_other_endpoints_and_lists_of_prompts_have_no_continuation() -> None:
    assert begin(EMBEDDINGS) is None
    assert begin(COMPLETIONS, prompt=["a", "b"]) is None
    assert begin(COMPLETIONS, best_of=2) is None


@pytest.mark.parametrize(
    "fields", [{"response_format": {"type": "text"}}, {"tool_choice": "auto"}, {"logprobs": False}]
)
def test_a_request_for_free_text_has_a_continuation(fields: dict[str, Any]) -> None:
    assert begin(**fields) is not None


def test_a_stream_that_reported_an_error_is_not_continued() -> None:
    stream = begun()
    stream.passed(event({"content": "one "}) + b'data: {"error": {"message": "engine died"}}\n\n')
    assert not stream.can_continue()


def test_a_stream_that_broke_after_comments_begins_with_the_next_replica() -> None:
    stream = begun()
    stream.passed(b": ping\n\n")
    assert json.loads(stream.next_body())["messages"] == MESSAGES
    first = event({"role": "assistant", "content": ""}, id="c-2")
    assert stream.passed(first) == first


def test_a_limit_without_bounds_is_passed_on_as_it_is() -> None:
    body = b'{"model": "m", "stream": true, "min_tokens": %s, "messages": [{}]}' % (b"9" * 5_000)
    stream = continuation_of(CHAT, request.read(body), body)
    assert stream is not None
    stream.passed(event({"content": "one "}))
    assert stream.can_continue() and b"9" * 5_000 in stream.next_body()
