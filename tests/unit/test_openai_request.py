"""Requests of OpenAI clients: fields that are read or changed, and the most tokens used."""

import json

import pytest

from services.api_gateway.openai import request
from services.api_gateway.openai.errors import ApiError
from services.api_gateway.openai.events import TOKENS_MAX
from services.api_gateway.openai.routes import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES, ROUTES


def body(**fields: object) -> bytes:
    return json.dumps({"model": "m", **fields}).encode()


def worst(path: str, **fields: object) -> int:
    """Return the most tokens that the answer alone can use."""
    data = body(**fields)
    return request.worst_case_tokens(request.read(data), data, path, 100) - len(data)


def test_unknown_fields_and_nulls_are_accepted() -> None:
    wish = request.read(
        body(stream=None, stream_options=None, n=None, tools=[{"a": 1}], x={"y": [1, None]})
    )
    assert (wish.model, wish.streams, wish.usage_asked, wish.is_bounded(CHAT)) == (
        "m",
        False,
        False,
        False,
    )


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b"{", None),
        (b"", None),
        (b"[]", None),
        (b'"x"', None),
        (b"{}", "model"),
        (b'{"model":5}', "model"),
        (b'{"model":"m","stream":"yes"}', "stream"),
        (b'{"model":"m","max_tokens":"many"}', "max_tokens"),
        (b'{"model":"\xff"}', None),
    ],
)
def test_a_malformed_body_is_a_400_that_names_the_field(data: bytes, param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        request.read(data)
    assert (caught.value.status, caught.value.type, caught.value.param) == (
        400,
        "invalid_request_error",
        param,
    )


def test_asking_for_usage_leaves_every_other_byte_of_a_field_alone() -> None:
    data = (
        b'{"model": "m", "messages": [ {"content":"\\u00e9\xc3\xa9"} ], "seed": 1.50, "stream": '
        b"true}"
    )
    changed = request.with_usage(data)
    assert b'[ {"content":"\\u00e9\xc3\xa9"} ]' in changed and b"1.50" in changed
    assert json.loads(changed) == {**json.loads(data), "stream_options": {"include_usage": True}}


@pytest.mark.parametrize(
    "given",
    [None, {}, {"include_usage": False}, {"continuous_usage_stats": True, "include_usage": None}],
)
def test_asking_for_usage_keeps_the_client_s_other_stream_options(
    given: dict[str, object] | None,
) -> None:
    changed = json.loads(request.with_usage(body(stream_options=given)))
    assert changed["stream_options"] == {**(given or {}), "include_usage": True}


def test_a_bound_is_set_where_none_was() -> None:
    assert json.loads(request.with_bound(body(max_tokens=None, a=[1]), 9, CHAT)) == {
        "model": "m",
        "max_tokens": 9,
        "a": [1],
    }


@pytest.mark.parametrize(
    "given",
    [
        b'{"model":"m"}',
        b'{"model":"m"} \n',
        b'{"model":"m","max_tokens":null}',
        b'{"model":"m","max\\u005ftokens":null}',
    ],
)
def test_a_field_that_is_set_is_in_the_body_once(given: bytes) -> None:
    pairs = json.loads(request.with_bound(given, 9, CHAT), object_pairs_hook=list)
    assert pairs == [("model", "m"), ("max_tokens", 9)]


def test_the_worst_case_is_all_of_the_body_and_all_of_every_answer() -> None:
    assert worst(CHAT) == 100
    assert worst(CHAT, max_tokens=7) == 7
    assert worst(CHAT, max_tokens=7, max_completion_tokens=9, n=3) == 27
    assert worst(COMPLETIONS, max_tokens=7, n=2, best_of=5) == 35
    assert worst(COMPLETIONS, max_tokens=7, prompt=["a", "b", "c"]) == 21
    assert worst(COMPLETIONS, max_tokens=7, prompt=[[1, 2], [3]]) == 14
    assert worst(COMPLETIONS, max_tokens=7, prompt=[1, 2, 3]) == 7
    assert worst(EMBEDDINGS, input="text") == 0
    for unbounded in (-5, 0):  # which some servers read as no limit
        assert worst(CHAT, max_tokens=unbounded) == 100
        assert worst(CHAT, max_tokens=unbounded, max_completion_tokens=5) == 100


@pytest.mark.parametrize(
    ("path", "ignored"),
    [
        (CHAT, "max_output_tokens"),
        (COMPLETIONS, "max_completion_tokens"),
        (COMPLETIONS, "max_output_tokens"),
        (RESPONSES, "max_tokens"),
        (RESPONSES, "max_completion_tokens"),
    ],
)
def test_a_limit_that_the_route_s_servers_ignore_does_not_count(path: str, ignored: str) -> None:
    data = body(**{ignored: 1})
    assert worst(path, **{ignored: 1}) == 100
    assert not request.read(data).is_bounded(path)
    bounded = request.with_bound(data, 9, path)
    assert json.loads(bounded)[ROUTES[path].bound] == 9
    assert request.read(bounded).is_bounded(path)


@pytest.mark.parametrize(
    ("given", "bounded"),
    [
        ({"max_tokens": -1}, {"max_tokens": 9}),
        ({"max_completion_tokens": -1}, {"max_completion_tokens": 9, "max_tokens": 9}),
        ({"max_completion_tokens": None}, {"max_completion_tokens": None, "max_tokens": 9}),
        (
            {"max_tokens": 5, "max_completion_tokens": -1},
            {"max_tokens": 9, "max_completion_tokens": 9},
        ),
    ],
)
def test_a_negative_limit_is_replaced(given: dict[str, object], bounded: dict[str, object]) -> None:
    assert not request.read(body(**given)).is_bounded(CHAT)
    assert json.loads(request.with_bound(body(**given), 9, CHAT)) == {"model": "m", **bounded}
    assert request.read(body(max_tokens=0)).is_bounded(CHAT)  # which asks for no answer


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        (b'"one, two"', 1),
        (b"[1, 2, 3]", 1),
        (b"[-1]", 1),
        (b"[]", 1),
        (b'["a, b", "c"]', 2),
        (b"[[1, 2], [3]]", 2),
        (b'["a"' + b', "b"' * request.COUNTED_MAX + b', "c, d"]', request.COUNTED_MAX + 3),
    ],
)
def test_prompts_are_counted_and_of_very_many_a_bound_is_given(prompt: bytes, prompts: int) -> None:
    data = b'{"model":"m","max_tokens":10,"prompt":' + prompt + b"}"
    assert (
        request.worst_case_tokens(request.read(data), data, request.COMPLETIONS, 0)
        == len(data) + 10 * prompts
    )


def test_no_wish_is_beyond_what_can_be_counted() -> None:
    data = b'{"model":"m","max_tokens":1' + b"0" * 30 + b"}"
    assert request.worst_case_tokens(request.read(data), data, CHAT, 0) == TOKENS_MAX
