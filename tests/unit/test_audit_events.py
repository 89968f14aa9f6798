"""Archived commits as CloudEvents 1.0: one event per fact and per access entry, for any commit."""

import json
from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common import subjects
from libs.common.errors import Refused
from libs.common.messages.access_entry import AccessEntry, encode, pack
from services.audit.chain.chain import GENESIS, link
from services.audit.export.events import (
    BEGINNING,
    DEPTH_MAX,
    EVENT_BYTES_MAX,
    Position,
    events,
    parse_position,
    show_position,
    source_of,
)
from services.audit.export.events import encode as encode_event
from services.audit.store.reading import read
from services.audit.store.store import Record

SCHEDULER = subjects.SCHEDULER
GATEWAY = subjects.gateway("a")
NODE = subjects.node("n1")
AT_NS = 1_700_000_000_123_456_789


def record(data: bytes, seq: int = 7, subject: str = SCHEDULER) -> Record:
    hash_ = link(seq=seq, subject=subject, data=data, index=seq - 1, previous_hash=GENESIS)
    return Record(
        index=seq - 1,
        seq=seq,
        subject=subject,
        data=data,
        at_ns=read(seq, subject, data).at_ns,
        hash=hash_,
        previous_hash=GENESIS,
    )


def commit(*facts: object, at_ns: int = AT_NS, subject: str = SCHEDULER) -> Record:
    data = bytes(msgpack.packb([1, 1, subject, 1, 1, at_ns, 0, list(facts)]))
    return record(data, subject=subject)


def shown(stored: Record) -> list[dict[str, Any]]:
    return [json.loads(encode_event(event)) for _, event in events(stored, "c1")]


def access(number: int) -> AccessEntry:
    return AccessEntry(
        at_ns=AT_NS - number,
        request_id=f"req-{number}",
        key_id="k1",
        tenant="t1",
        user="ann",
        method="GET",
        route="/v1/jobs/{ref}",
        ids=("j1",),
        status=403,
        denied="no role",
        source="10.0.0.9",
    )


def test_a_fact_is_one_event_with_the_specified_attributes_and_its_place_in_the_chain() -> None:
    stored = commit({"kind": "job.placed", "job_id": "j1", "port": 29500})
    assert shown(stored) == [
        {
            "specversion": "1.0",
            "id": "7-0",
            "source": "c1",
            "type": "io.muster.job.placed",
            "subject": "j1",
            "time": "2023-11-14T22:13:20.123456Z",
            "datacontenttype": "application/json",
            "sequence": "00000000000000000007",
            "chainhash": stored.hash,
            "writer": "facts.scheduler",
            "data": {"kind": "job.placed", "job_id": "j1", "port": 29500},
        }
    ]


def test_a_batch_of_access_records_is_one_event_for_each_entry() -> None:
    batch = {
        "kind": "access.recorded",
        "entries": pack([encode(access(0)), encode(access(1))]),
        "count": 2,
    }
    found = shown(commit({"kind": "job.submitted", "job_id": "j1"}, batch, subject=GATEWAY))
    assert [each["id"] for each in found] == ["7-0", "7-1-0", "7-1-1"]
    assert [each["type"] for each in found[1:]] == ["io.muster.access.recorded"] * 2
    assert found[2]["data"] == json.loads(msgspec.json.encode(msgspec.structs.asdict(access(1))))
    assert found[2]["time"] == "2023-11-14T22:13:20.123456Z"


def test_that_access_records_were_dropped_is_an_event_of_its_own_behind_those_that_were_kept() -> (
    None
):
    found = shown(
        commit(
            {
                "kind": "access.recorded",
                "entries": pack([encode(access(0))]),
                "count": 1,
                "dropped": 3,
            },
            subject=GATEWAY,
        )
    )
    assert [(each["id"], each["data"].get("dropped")) for each in found] == [
        ("7-0-0", None),
        ("7-0", 3),
    ]
    assert "entries" not in found[1]["data"]


def test_a_batch_that_cannot_be_read_is_shown_as_it_is() -> None:
    assert [
        each["data"]["entries"]
        for entries in (b"no", "text")
        for each in shown(commit({"kind": "access.recorded", "entries": entries}, subject=GATEWAY))
    ] == ["bm8=", "text"]


def test_a_commit_that_cannot_be_read_is_one_event_with_its_bytes() -> None:
    (found,) = shown(record(b"\xff\x00"))
    assert (found["id"], found["type"], found["data"]) == (
        "7-0",
        "io.muster.commit.unreadable",
        {"commit": "/wA="},
    )
    assert "time" not in found and "subject" not in found


@pytest.mark.parametrize(
    ("subject", "fact"),
    [
        (NODE, {"kind": "usage.charged", "job_id": "j1", "tenant": "a", "share_ms": 1}),
        (NODE, {"kind": "access.recorded", "entries": pack([encode(access(0))]), "count": 1}),
        (NODE, {"kind": "job.started", "job_id": "j1", "node_id": "n2"}),
        (NODE, {"kind": "job.started", "job_id": "j1", "node_id": ["n1"]}),
        (GATEWAY, {"kind": "job.placed", "job_id": "j1"}),
        (SCHEDULER, {"kind": "usage.charged", "job_id": "j1"}),
    ],
)
def test_a_fact_that_its_writer_may_not_record_is_ignored(
    subject: str, fact: dict[str, Any]
) -> None:
    (found,) = shown(commit(fact, subject=subject))
    assert (found["id"], found["type"]) == ("7-0", f"io.muster.{fact['kind']}.ignored")
    assert found["data"]["reason"] == f"{subject} may not record this fact"


def test_facts_of_right_writers_and_of_later_kinds_are_not_ignored() -> None:
    started = {"kind": "job.started", "job_id": "j1", "node_id": "n1"}
    found = shown(commit(started, {"kind": "of.tomorrow"}, subject=NODE))
    assert [each["type"] for each in found] == ["io.muster.job.started", "io.muster.of.tomorrow"]


def test_a_commit_without_facts_has_no_events() -> None:
    assert shown(commit()) == []


def test_values_that_json_lacks_are_converted() -> None:
    odd: dict[object, object] = {
        "kind": "of.tomorrow",
        "bytes": b"\x00",
        3: {b"k": [1.5, None]},
        "big": 1 << 63,
    }
    assert shown(commit(odd))[0]["data"] == {
        "kind": "of.tomorrow",
        "bytes": "AA==",
        "3": {"b'k'": [1.5, None]},
        "big": 1 << 63,
    }


def test_deeply_nested_values_are_left_out() -> None:
    deep: object = 1
    for _ in range(DEPTH_MAX + 200):
        deep = [deep]
    assert "(deeper)" in json.dumps(shown(commit({"kind": "a.b", "deep": deep})))


def test_event_too_large_for_a_message_has_a_note() -> None:
    stored = commit({"kind": "a.b", "job_id": "j1", "text": "x" * EVENT_BYTES_MAX})
    (found,) = [encode_event(event) for _, event in events(stored, "c1")]
    assert len(found) < 1_000
    assert "the archive has them" in json.loads(found)["data"]["left_out"]


@given(
    st.binary(max_size=300)
    | st.builds(
        lambda facts: msgpack.packb([1, 1, "w", 1, 1, 5, 0, facts]),
        st.lists(st.just({"kind": "a.b"})),
    )
)
def test_no_bytes_can_stop_the_events_and_the_same_bytes_give_the_same(data: bytes) -> None:
    assert shown(record(data)) == shown(record(data))


places = st.lists(st.integers(0, 99), min_size=1, max_size=3).map(
    lambda numbers: Position(*numbers)
)


@given(places)
def test_position_is_parsed_as_it_was_written(place: Position) -> None:
    assert parse_position(show_position(place)) == place


def test_positions_follow_the_log_and_a_commit_comes_after_its_parts() -> None:
    texts = ["", "1-0", "1-1-0", "1-1-1", "1-1", "1", "2-0", "10-0"]
    places = [parse_position(text) for text in texts]
    assert places == sorted(places) and places[0] == BEGINNING


@pytest.mark.parametrize("text", ["x", "1-", "-1", "1-2-3-4", "1.0", "9" * 20])
def test_invalid_position_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="is not an event's id"):
        parse_position(text)


def test_a_source_is_a_uri_reference_whatever_the_cluster_is_called() -> None:
    assert (source_of("prod-1"), source_of("a b/c"), source_of("")) == (
        "prod-1",
        "a%20b%2Fc",
        "muster",
    )
