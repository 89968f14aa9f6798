"""Messages become fields as they were set, and JSON becomes messages without what does not fit."""

import math
from typing import Any

import pytest
from google.protobuf.message import Message

from libs.rpc.messages import PACKAGE, class_of, message, services
from services.api_gateway.rpc.conversion import encoded, fields_of
from services.api_gateway.rpc.methods import METHODS, SERVICES


def made(name: str, fields: object) -> Message:
    """The message of an answer."""
    kind = message(name)
    return kind.FromString(encoded(kind.DESCRIPTOR, fields))


def back(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    return fields_of(made(name, fields))


def test_every_method_of_the_table_is_in_the_descriptors() -> None:
    found = {
        (service, method.name)
        for service in SERVICES
        for method in services()[f"{PACKAGE}.{service}"].methods
    }
    assert found == {(each.service, each.name) for each in METHODS}


def test_only_fields_that_were_set_are_returned() -> None:
    request = message("SubmitJobRequest")(command=["true"], gpus=0, hold=False, env={"A": "b"})
    assert fields_of(request) == {"command": ["true"], "gpus": 0, "hold": False, "env": {"A": "b"}}


def test_nested_messages_and_json_become_objects() -> None:
    request = message("SubmitJobRequest")(
        container={"mounts": [{"source": "/a", "target": "/b", "read_only": False}]},
        array={"ranges": [[0, 99, 1]], "at_once": 4},
    )
    assert fields_of(request) == {
        "container": {"mounts": [{"source": "/a", "target": "/b", "read_only": False}]},
        "array": {"ranges": [[0, 99, 1]], "at_once": 4},
    }


def test_whole_numbers_of_json_are_whole_again() -> None:
    more = {"a": 2.0, "b": 2.5, "c": [1e300, {"d": 3.0}], "e": None}
    assert fields_of(message("ChatRequest")(more=more)) == {
        "more": {"a": 2, "b": 2.5, "c": [1e300, {"d": 3}], "e": None}
    }


def test_a_number_that_no_text_has_is_refused() -> None:
    request = message("ChatRequest")()
    request.more["a"] = math.nan  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="NaN"):
        fields_of(request)


def test_maps_of_messages_become_objects_of_objects() -> None:
    assert back("Model", {"limits": {"t": {"tokens_per_minute": 3}}}) == {
        "limits": {"t": {"tokens_per_minute": 3}}
    }


@pytest.mark.parametrize(
    ("name", "fields", "kept"),
    [
        ("Job", {"id": "j", "colour": 1, "exit_code": None}, {"id": "j"}),
        ("Job", {"seq": 5.0, "gpus": 1.5, "nodes": "x", "port": 1 << 63}, {"seq": 5}),
        ("Job", {"name": 5, "held": "yes", "labels": ["a"], "members": {"a": 1}}, {"name": "5"}),
        ("Job", {"held": True, "node_ids": ["a"], "array": 5}, {"held": True, "node_ids": ["a"]}),
        ("JobFrame", {"data": "aGk="}, {"data": b"hi"}),
        ("JobFrame", {"data": "?"}, {}),
        ("JobFrame", {"data": 5}, {}),
        ("BytesPiece", {"data": b"hi"}, {"data": b"hi"}),
        ("Event", {"fact": {"a": [1, None]}, "seq": 1}, {"seq": 1, "fact": {"a": [1, None]}}),
        ("Embedding", {"embedding": [1, 0.5, "x"]}, {"embedding": [1.0, 0.5]}),
        ("Job", [], {}),
    ],
    ids=str,
)
def test_an_answer_keeps_what_fits(name: str, fields: Any, kept: dict[str, Any]) -> None:
    assert back(name, fields) == kept


def test_a_class_is_made_once() -> None:
    assert class_of(message("Job").DESCRIPTOR) is message("Job")
