"""The gRPC status of each HTTP answer, and its problem as metadata."""

import json

import pytest
from grpc import StatusCode

from services.api_gateway.problems import TITLES, Problem
from services.api_gateway.rpc.status import (
    CODES,
    PROBLEM,
    PROBLEM_BYTES_MAX,
    code_of,
    of_problem,
    refusal,
)

SERVERS_FAULT = (StatusCode.INTERNAL, StatusCode.UNKNOWN)


@pytest.mark.parametrize("status", TITLES)
def test_every_status_of_the_gateway_has_a_code(status: int) -> None:
    assert status in CODES


def test_only_a_bug_is_the_server_s_fault() -> None:
    assert [each for each in range(400, 600) if code_of(each) in SERVERS_FAULT] == [500]


def test_the_problem_is_in_the_metadata() -> None:
    found = of_problem(Problem(409, "no\nroom für it", candidates=["a", "b"]), "r-1")
    assert (found.code, found.detail) == (StatusCode.FAILED_PRECONDITION, "no room für it")
    metadata = dict(found.metadata)
    assert metadata["muster-status"] == "409" and metadata["x-request-id"] == "r-1"
    assert metadata[PROBLEM].isascii()
    assert json.loads(metadata[PROBLEM]) == {
        "title": "Conflict",
        "status": 409,
        "detail": "no\nroom für it",
        "candidates": ["a", "b"],
    }


def test_an_error_of_openai_s_shape_gives_its_message() -> None:
    body = b'{"error": {"message": "no such model", "type": "x", "param": null, "code": "c"}}'
    found = refusal(404, body)
    assert (found.code, found.detail) == (StatusCode.NOT_FOUND, "no such model")
    assert json.loads(dict(found.metadata)[PROBLEM])["error"]["code"] == "c"


def test_the_pause_of_a_header_is_in_the_problem() -> None:
    found = refusal(429, b'{"detail": "later"}', retry_after="7")
    assert json.loads(dict(found.metadata)[PROBLEM])["retry_after_s"] == 7
    kept = refusal(429, b'{"detail": "later", "retry_after_s": 3}', retry_after="7")
    assert json.loads(dict(kept.metadata)[PROBLEM])["retry_after_s"] == 3


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b"plain text", "plain text"),
        (b"[1]", "[1]"),
        (b"", "the request was answered with 503"),
        (b'{"title": "Unavailable"}', "Unavailable"),
        (b'{"error": {}}', "the request was answered with 503"),
    ],
)
def test_an_answer_of_any_form_gives_a_text(body: bytes, detail: str) -> None:
    assert refusal(503, body).detail == detail


def test_a_long_problem_is_cut_to_what_a_client_reads() -> None:
    found = of_problem(Problem(422, "ä" * 10_000, candidates=["x"] * 10_000))
    text = dict(found.metadata)[PROBLEM]
    assert len(text) <= PROBLEM_BYTES_MAX and json.loads(text)["status"] == 422
    assert len(found.detail.encode()) < 2_000
