"""OpenAI's error shape is the same for every refusing part."""

import json

import pytest

from services.api_gateway.openai.errors import (
    NO_KEY,
    ApiError,
    RateLimited,
    of_problem,
    render,
    shaped,
)
from services.api_gateway.problems import Problem


def test_an_error_has_openai_s_four_members() -> None:
    error = ApiError(404, "no such model", "model_not_found", "model")
    assert json.loads(render(error)) == {
        "error": {
            "message": "no such model",
            "type": "invalid_request_error",
            "param": "model",
            "code": "model_not_found",
        }
    }


def test_a_rate_limit_says_when_to_come_back_at_least_a_second_later() -> None:
    error = RateLimited("tokens", "too many", 0, ((b"x-ratelimit-limit-tokens", b"5"),))
    assert error.headers == [(b"retry-after", b"1"), (b"x-ratelimit-limit-tokens", b"5")]
    assert json.loads(render(error))["error"]["type"] == "tokens"


def test_the_edge_s_refusal_keeps_its_text() -> None:
    for detail, message in (
        ("it is unknown", "Incorrect API key provided: it is unknown"),
        (f"{NO_KEY}: send it", "no API key provided: send it"),
    ):
        error = of_problem(Problem(401, detail))
        assert (error.status, error.message, error.code) == (401, message, "invalid_api_key")


def test_a_replica_s_refusal_in_the_right_shape_is_untouched() -> None:
    body = b'{ "error": {"message":"m", "more":1} }'
    assert shaped(400, body) is body


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"object":"error","message":"too long","code":400}', "too long"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"error":"out of memory"}', "out of memory"),
        (b"Internal Server Error", "Internal Server Error"),
        (b'{"detail":[{"loc":"body"}]}', '[{"loc":"body"}]'),
        (b"", "the model's server answered 500 with an empty body"),
    ],
)
def test_any_other_refusal_of_a_replica_is_put_into_the_shape(body: bytes, message: str) -> None:
    assert json.loads(shaped(500, body))["error"] == {
        "message": message,
        "type": "server_error",
        "param": None,
        "code": None,
    }
