"""The client's errors: the class follows the status, and the text names the field."""

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.client import errors
from libs.client.errors import (
    ApiError,
    FunctionFailed,
    InvalidRequest,
    JobFailed,
    RateLimited,
    Unavailable,
    error_of,
    field_of,
)


def problem(status: int, detail: str, **more: Any) -> ApiError:
    body = {"title": "x", "status": status, "detail": detail, **more}
    return error_of(status, json.dumps(body).encode(), "GET /v1/jobs/x")


@pytest.mark.parametrize(("status", "kind"), errors.BY_STATUS.items())
def test_each_status_has_its_class(status: int, kind: type[ApiError]) -> None:
    found = problem(status, "it is so")
    assert type(found) is kind
    assert (found.status, found.detail, str(found)) == (status, "it is so", "it is so")


def test_another_status_is_an_api_error() -> None:
    assert type(problem(500, "a bug")) is ApiError


@pytest.mark.parametrize(
    ("detail", "field"),
    [
        ("nodes: 0 is out of bounds: give 1 to 4096", "nodes"),
        ("add_nodes.nodes: 0 is out of bounds", "add_nodes.nodes"),
        ("Idempotency-Key: the key was used", "Idempotency-Key"),
        ("field 'gpu' is not known: did you mean 'gpus'?", "gpu"),
        ("query parameter 'x' does not exist, and there is no other", "x"),
        ("the request body must be a JSON object", ""),
        ("", ""),
    ],
)
def test_the_field_is_read_from_the_text(detail: str, field: str) -> None:
    found = problem(422, detail)
    assert isinstance(found, InvalidRequest)
    assert found.field == field
    assert field_of(detail) == field


def test_a_field_that_is_given_is_kept() -> None:
    assert InvalidRequest("it is too large", field="path").field == "path"


def test_the_pause_of_a_limit_comes_from_the_body_or_the_header() -> None:
    limited = problem(429, "slow down", retry_after_s=7)
    assert isinstance(limited, RateLimited) and limited.retry_after_s == 7
    by_header = error_of(503, b"", "GET /", "12")
    assert isinstance(by_header, Unavailable) and by_header.retry_after_s == 12
    for odd in (True, -1, "7", None):
        other = problem(429, "slow down", retry_after_s=odd)
        assert isinstance(other, RateLimited) and other.retry_after_s == 0


def test_the_candidates_of_an_ambiguous_name_are_in_the_text() -> None:
    assert str(problem(409, "several jobs", candidates=["a", "b"])) == "several jobs: a, b"


def test_a_function_that_failed_has_the_nodes_traceback() -> None:
    found = FunctionFailed("no result", "failed", "exit code 1", 1, "Traceback")
    assert (found.state, found.reason, found.code) == ("failed", "exit code 1", 1)
    assert found.traceback == "Traceback"


@given(st.integers(400, 599), st.binary(max_size=64), st.text(max_size=8))
def test_every_answer_gives_an_error(status: int, answer: bytes, header: str) -> None:
    found = error_of(status, answer, "GET /", header)
    assert found.status == status and str(found)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("gpus: 99 is out of bounds", 422, {"detail": "x"}),
        Unavailable("no gateway answers", sent=False),
        JobFailed("job j1 is failed", state="failed", reason="exit_code", code=3),
        FunctionFailed("no result", state="failed", reason="", code=1, traceback="lines"),
    ],
)
def test_an_error_passes_between_processes_with_all_its_fields(error: Exception) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
