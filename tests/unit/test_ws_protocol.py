"""The messages of WebSocket clients: what is understood, and errors that name the field."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.api_gateway.problems import Problem
from services.api_gateway.views.interests import JobFilter
from services.api_gateway.ws.filters import FILTERS, EventsFilter, JobsFilter, LogsFilter, names_in
from services.api_gateway.ws.open_ids import (
    BAD_MESSAGES_MAX,
    OPEN_MAX,
    REQUEST,
    REQUESTS_MAX,
    SUBSCRIPTION,
    OpenIds,
)
from services.api_gateway.ws.protocol import (
    BadMessage,
    Cancel,
    Ping,
    Request,
    Subscribe,
    Unsubscribe,
    read_key,
    read_message,
)


def read(**fields: Any) -> Any:
    return read_message(json.dumps(fields))


def subscribed(topic: str, **chosen: Any) -> Any:
    return read(op="subscribe", id="a", topic=topic, filter=chosen).filter


def test_each_operation_is_understood() -> None:
    assert read(op="ping") == Ping(0)
    assert read(op="ping", n=7) == Ping(7)
    assert read(op="unsubscribe", id="a") == Unsubscribe("a")
    assert read(op="cancel", id="a") == Cancel("a")
    assert read(op="request", id="r", model="m", body={"messages": []}) == Request(
        "r", "m", {"messages": []}
    )
    asked = read(op="subscribe", id="a", topic="jobs", after=9)
    assert asked == Subscribe("a", "jobs", JobsFilter(), 9)
    assert read(op="subscribe", id="a", topic="jobs", after=None, filter=None).after == 0


@pytest.mark.parametrize("topic", [name for name in FILTERS if name != "logs"])
def test_every_topic_but_logs_needs_no_filter(topic: str) -> None:
    assert read(op="subscribe", id="a", topic=topic).filter == FILTERS[topic]()


def test_a_filter_of_jobs_takes_states_as_text_or_as_a_list() -> None:
    expected = JobFilter(states=("queued", "running"), user="ada", only=frozenset())
    assert subscribed("jobs", state="queued,running", user="ada").of_jobs() == expected
    assert subscribed("jobs", state=["queued", "running"], user="ada").of_jobs() == expected
    assert subscribed("fleet", ids=["n1"]).names() == {"n1"}
    assert subscribed("logs", job="j", offset=5) == LogsFilter("j", offset=5)
    assert subscribed("events", kind="job.") == EventsFilter(kind="job.")


def test_a_filter_knows_how_many_jobs_or_nodes_it_names() -> None:
    assert names_in(subscribed("jobs", ids=["a", "b"])) == 2
    assert names_in(subscribed("nodes", ids=["n1"])) == 1
    assert names_in(subscribed("jobs", state="queued")) == names_in(subscribed("summary")) == 0


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "op"),
        ({"op": 5}, "op"),
        ({"op": "shout"}, "op"),
        ({"op": "ping", "n": "x"}, "n"),
        ({"op": "ping", "n": 1 << 60}, "n"),
        ({"op": "ping", "m": 1}, "m"),
        ({"op": "unsubscribe"}, "id"),
        ({"op": "unsubscribe", "id": ""}, "id"),
        ({"op": "unsubscribe", "id": "x" * 65}, "id"),
        ({"op": "cancel", "id": 7}, "id"),
        ({"op": "request", "id": "r", "model": "m"}, "body"),
        ({"op": "request", "id": "r", "model": "m", "body": []}, "body"),
        ({"op": "subscribe", "id": "a"}, "topic"),
        ({"op": "subscribe", "id": "", "topic": "jobs"}, "id"),
        ({"op": "subscribe", "id": "a", "topic": "gossip"}, "topic"),
        ({"op": "subscribe", "id": "a", "topic": "jobs", "after": -1}, "after"),
        ({"op": "subscribe", "id": "a", "topic": "jobs", "after": "x"}, "after"),
        ({"op": "subscribe", "id": "a", "topic": "jobs", "filter": []}, "filter"),
    ],
)
def test_an_error_names_the_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(BadMessage) as caught:
        read_message(json.dumps(fields))
    assert caught.value.field == field and str(caught.value)
    assert caught.value.id == (fields.get("id") if fields.get("id") in ("a", "r") else "")


@pytest.mark.parametrize(
    ("topic", "chosen", "field"),
    [
        ("jobs", {"state": "asleep"}, "filter.state"),
        ("jobs", {"state": 5}, "filter.state"),
        ("jobs", {"ids": ["x"] * 1_001}, "filter.ids"),
        ("jobs", {"ids": ["x" * 129]}, "filter.ids"),
        ("jobs", {"user": "x" * 257}, "filter.user"),
        ("jobs", {"colour": "red"}, "filter.colour"),
        ("jobs", {"snapshot": "no"}, "filter.snapshot"),
        ("nodes", {"ids": ["x"] * 1_001}, "filter.ids"),
        ("summary", {"x": 1}, "filter.x"),
        ("logs", {}, "filter.job"),
        ("logs", {"job": "j", "stream": "stdlog"}, "filter.stream"),
        ("logs", {"job": "j", "rank": -1}, "filter.rank"),
        ("logs", {"job": "j", "attempt": 1 << 40}, "filter.attempt"),
        ("logs", {"job": "j", "offset": -1}, "filter.offset"),
        ("logs", {"job": "j", "tail_bytes": -1}, "filter.tail_bytes"),
    ],
)
def test_an_error_in_a_filter_names_the_field(
    topic: str, chosen: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadMessage) as caught:
        subscribed(topic, **chosen)
    assert (caught.value.field, caught.value.id) == (field, "a")


@pytest.mark.parametrize("data", [b"{}", "", "nonsense", "[]", "null", "[" * 100_000, '"\\ud800"'])
def test_what_is_no_json_object_is_refused_as_a_whole(data: str | bytes) -> None:
    with pytest.raises(BadMessage) as caught:
        read_message(data)
    assert caught.value.field == ""


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "op": st.sampled_from(["subscribe", "unsubscribe", "ping", "request", "cancel"]),
            "id": st.text() | VALUES,
            "topic": st.sampled_from(list(FILTERS)) | VALUES,
            "filter": VALUES,
            "after": VALUES,
            "n": VALUES,
            "model": VALUES,
            "body": VALUES,
        },
    )
)
def test_any_message_is_understood_or_refused_with_a_reason(fields: dict[str, Any]) -> None:
    try:
        found = read_message(json.dumps(fields))
    except BadMessage as error:
        assert str(error)
    else:
        assert isinstance(found, Subscribe | Unsubscribe | Ping | Request | Cancel)


@given(st.text() | st.binary())
def test_any_bytes_are_refused_or_understood(data: str | bytes) -> None:
    for reader in (read_message, read_key):
        try:
            reader(data)
        except BadMessage as error:
            assert str(error)


def test_the_first_message_has_a_key() -> None:
    assert read_key('{"key": "msk_1"}') == "msk_1"
    for wrong in ("{}", '{"key": 5}', '{"key": ""}', json.dumps({"key": "x" * 9_000})):
        with pytest.raises(BadMessage) as caught:
            read_key(wrong)
        assert caught.value.field == "key"


def test_an_id_is_used_once_at_a_time() -> None:
    ids = OpenIds()
    ids.enter("a", SUBSCRIPTION)
    assert ids.has("a", SUBSCRIPTION) and not ids.has("a", REQUEST) and not ids.has("b", REQUEST)
    with pytest.raises(BadMessage, match="in use by a subscription"):
        ids.enter("a", REQUEST)
    ids.leave("a")
    ids.leave("a")
    ids.enter("a", REQUEST)


def test_a_connection_has_a_bounded_number_of_ids() -> None:
    ids = OpenIds()
    for number in range(REQUESTS_MAX):
        ids.enter(f"r{number}", REQUEST)
    with pytest.raises(Problem, match=f"{REQUESTS_MAX} requests to models"):
        ids.enter("more", REQUEST)
    for number in range(OPEN_MAX - REQUESTS_MAX):
        ids.enter(f"s{number}", SUBSCRIPTION)
    with pytest.raises(Problem, match=f"{OPEN_MAX} subscriptions and requests"):
        ids.enter("more", SUBSCRIPTION)


def test_only_so_many_messages_may_be_invalid() -> None:
    ids = OpenIds()
    assert [ids.note_bad() for _ in range(BAD_MESSAGES_MAX + 1)] == [
        *[False] * BAD_MESSAGES_MAX,
        True,
    ]
