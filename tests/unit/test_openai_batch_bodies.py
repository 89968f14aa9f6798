"""Bodies that are joined and answers that are divided: order, results and usage of each request."""

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.api_gateway.openai.batch_bodies import Inputs, divided, inputs_of, joined
from services.api_gateway.openai.routes import COMPLETIONS, EMBEDDINGS


def inputs(path: str, **fields: Any) -> Inputs:
    found = inputs_of(path, json.dumps({"model": "m", **fields}).encode())
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("given", "items"),
    [
        ("hi", ['"hi"']),
        (["a", "b"], ['"a"', '"b"']),
        ([1, 2], ["[1, 2]"]),
        ([[1, 2], [3]], ["[1, 2]", "[3]"]),
    ],
)
def test_inputs_are_texts_or_tokens_one_or_many(given: Any, items: list[str]) -> None:
    found = inputs(EMBEDDINGS, input=given)
    assert [item.decode() for item in found.items] == items


@pytest.mark.parametrize("given", [None, 5, {}, [], [[]], ["a", [1]], ["a", 1], [True]])
def test_other_inputs_are_not_joined(given: Any) -> None:
    body = json.dumps({"model": "m", "input": given}).encode()
    assert inputs_of(EMBEDDINGS, body) is None


def test_requests_with_many_inputs_or_fields_are_not_joined() -> None:
    body = json.dumps({"model": "m", "input": ["a", "b"]}).encode()
    assert inputs_of(EMBEDDINGS, body, 3) is not None and inputs_of(EMBEDDINGS, body, 2) is None
    many = {f"x{number}": 1 for number in range(64)}
    assert inputs_of(EMBEDDINGS, json.dumps({"input": "a", **many}).encode()) is not None
    assert inputs_of(EMBEDDINGS, json.dumps({"input": "a", "y": 1, **many}).encode()) is None


@pytest.mark.parametrize("values", [b"0,", b"{},"])
def test_an_answer_with_more_results_than_inputs_is_refused_at_its_first_one_too_many(
    values: bytes,
) -> None:
    asked = [inputs(EMBEDDINGS, input="a"), inputs(EMBEDDINGS, input="b")]
    body = b'{"data":[' + values * (1 << 20) + b"0]}"
    tracemalloc.start()
    try:
        assert divided(EMBEDDINGS, body, asked) is None
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_an_answer_with_very_many_names_or_results_is_not_divided() -> None:
    names = b'{"data":[{},{}],"x":[' + b'{"":0},' * (1 << 20) + b"0]}"
    assert divided(EMBEDDINGS, names, [inputs(EMBEDDINGS, input=["a", "b"])]) is None
    asked = [inputs(COMPLETIONS, prompt="a", n=10_000)]
    assert divided(COMPLETIONS, b'{"choices":[]}', asked) is None


def test_a_stream_is_not_joined() -> None:
    body = json.dumps({"model": "m", "prompt": "a", "stream": True}).encode()
    assert inputs_of(COMPLETIONS, body) is None
    assert inputs_of(COMPLETIONS, b'{"model":"m"}') is None


def test_requests_share_a_batch_only_if_all_other_fields_are_equal() -> None:
    one = inputs(COMPLETIONS, prompt="a", temperature=0)
    assert one.shared == inputs(COMPLETIONS, temperature=0, prompt=["b", "c"]).shared
    assert one.shared != inputs(COMPLETIONS, prompt="a", temperature=1).shared
    assert one.shared != inputs(COMPLETIONS, prompt=[1, 2], temperature=0).shared
    assert one.shared != inputs(COMPLETIONS, prompt="a", temperature=0, user="u").shared


def test_a_joined_body_has_all_inputs_in_order_and_the_common_fields() -> None:
    requests = [inputs(EMBEDDINGS, input=each, dimensions=8) for each in ("a", ["b", "c"])]
    assert json.loads(joined(EMBEDDINGS, requests)) == {
        "model": "m",
        "dimensions": 8,
        "input": ["a", "b", "c"],
    }


def embeddings(count: int, **fields: Any) -> bytes:
    data = [{"object": "embedding", "index": at, "embedding": [at / 2]} for at in range(count)]
    return json.dumps({"object": "list", "data": data[::-1], "model": "m", **fields}).encode()


def test_each_request_gets_its_own_results_counted_from_0_and_its_part_of_the_usage() -> None:
    requests = [inputs(EMBEDDINGS, input=each) for each in ("aaaa", ["bb", "cc"])]
    usage = {"prompt_tokens": 14, "total_tokens": 14}
    found = divided(EMBEDDINGS, embeddings(3, usage=usage, secret="of all"), requests)
    assert found is not None
    first, second = (json.loads(part.body) for part in found)
    assert first == {
        "object": "list",
        "model": "m",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.0]}],
        "usage": {"prompt_tokens": 6, "total_tokens": 6},
    }
    assert [each["index"] for each in second["data"]] == [0, 1]
    assert [each["embedding"] for each in second["data"]] == [[0.5], [1.0]]
    assert second["usage"] == {"prompt_tokens": 8, "total_tokens": 8}


def test_several_choices_of_each_prompt_stay_together() -> None:
    requests = [inputs(COMPLETIONS, prompt=each, n=2) for each in ("a", "b")]
    choices = [{"index": at, "text": "x" * (at + 1)} for at in range(4)]
    usage = {"prompt_tokens": 2, "completion_tokens": 12, "total_tokens": 14}
    body = json.dumps({"id": "c", "choices": choices, "usage": usage}).encode()
    found = divided(COMPLETIONS, body, requests)
    assert found is not None
    shown = [json.loads(part.body) for part in found]
    assert [[each["text"] for each in one["choices"]] for one in shown] == [
        ["x", "xx"],
        ["xxx", "xxxx"],
    ]
    assert sum(one["usage"]["total_tokens"] for one in shown) == 14
    assert shown[1]["usage"]["completion_tokens"] > shown[0]["usage"]["completion_tokens"]


def test_without_usage_no_part_has_one() -> None:
    [part] = divided(EMBEDDINGS, embeddings(1), [inputs(EMBEDDINGS, input="a")]) or []
    assert part.usage is None and "usage" not in json.loads(part.body)


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b'{"data": 5}',
        b'{"object": "list"}',
        embeddings(3),
        b'{"data": [{"index": 0}, {"index": 0}]}',
        b'{"data": [{"index": "0"}, {"index": 1}]}',
    ],
)
def test_an_answer_that_lacks_a_result_is_not_divided(body: bytes) -> None:
    requests = [inputs(EMBEDDINGS, input=each) for each in "ab"]
    assert divided(EMBEDDINGS, body, requests) is None


@given(st.lists(st.lists(st.text(max_size=8), min_size=1, max_size=4), min_size=1, max_size=8))
def test_no_result_is_lost_or_changes_its_owner(texts: list[list[str]]) -> None:
    """The server answers each text with itself, so every request must find its own texts."""
    requests = [inputs(EMBEDDINGS, input=each) for each in texts]
    asked = json.loads(joined(EMBEDDINGS, requests))["input"]
    data = [{"index": at, "embedding": text} for at, text in enumerate(asked)]
    usage = {"prompt_tokens": 3 * len(asked), "total_tokens": 3 * len(asked)}
    body = json.dumps({"data": data, "usage": usage}).encode()
    found = divided(EMBEDDINGS, body, requests)
    assert found is not None
    answers = [[each["embedding"] for each in json.loads(part.body)["data"]] for part in found]
    assert answers == texts
    assert sum(part.usage.tokens for part in found if part.usage) == 3 * len(asked)
