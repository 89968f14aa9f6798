"""Requests of the client as values: what they send, and when they may be repeated."""

import msgspec
import pytest

from libs.client import calls
from libs.client.calls import changing, decoded, job_path, member, pairs, path_of, reading
from libs.client.errors import ApiError


def test_every_part_of_a_path_is_quoted() -> None:
    assert path_of("jobs", "a/../b?c") == "/v1/jobs/a%2F..%2Fb%3Fc"
    assert job_path("train", "why") == "/v1/jobs/train/why"


def test_a_replica_is_named_by_model_and_number() -> None:
    assert job_path("chat/2") == "/v1/jobs/chat-2"


def test_a_query_has_no_empty_values_and_booleans_as_json_has_them() -> None:
    assert pairs(
        {"all": True, "elements": False, "name": "", "user": None, "label": ["a", "b"]}
    ) == (
        ("all", "true"),
        ("elements", "false"),
        ("label", "a"),
        ("label", "b"),
    )


def test_a_read_may_be_repeated() -> None:
    call = reading("/v1/jobs", {"limit": 5}, timeout_s=3)
    assert (call.what, call.repeatable, call.query) == ("GET /v1/jobs", True, (("limit", "5"),))
    assert (call.content, call.timeout_s) == (b"", 3)


def test_a_change_may_be_repeated_with_a_key_or_if_it_says_so() -> None:
    assert not changing("POST", "/x", {}).repeatable
    assert changing("POST", "/x", {}, repeatable=True).repeatable
    keyed = changing("POST", "/x", {"a": 1, "b": None}, key="k")
    assert keyed.repeatable and dict(keyed.headers) == {
        calls.IDEMPOTENCY_HEADER: "k",
        "Content-Type": "application/json",
    }
    assert msgspec.json.decode(keyed.content) == {"a": 1}


def test_a_change_without_a_body_has_no_content_type() -> None:
    call = changing("DELETE", "/x", query={"a": 1})
    assert (call.content, call.headers, call.query) == (b"", (), (("a", "1"),))


class Thing(msgspec.Struct):
    name: str = "unnamed"


def test_unknown_members_are_ignored_and_missing_ones_get_their_default() -> None:
    assert decoded(b'{"new": 1}', Thing, "GET /x") == Thing()


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"name": 1}', b'{"name": "\xff"}'])
def test_an_answer_of_another_form_is_an_error_that_names_the_request(answer: bytes) -> None:
    with pytest.raises(ApiError, match="GET /x"):
        decoded(answer, Thing, "GET /x")


def test_a_list_is_read_with_its_cursor() -> None:
    answer = b'{"things": [{"name": "a"}], "next": "a", "seq": 7}'
    assert member(answer, "things", tuple[Thing, ...], "GET /x") == ((Thing("a"),), "a")
    assert member(b"{}", "things", tuple[Thing, ...], "GET /x") == ((), None)
