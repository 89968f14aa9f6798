"""Which protobuf type each JSON schema becomes."""

from typing import Any

import pytest

from services.api_gateway.description.proto_kinds import (
    LIST,
    STRUCT,
    VALUE,
    Kind,
    kind_of,
    message_name,
)

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
NULL = {"type": "null"}
JOB = {"$ref": "#/components/schemas/JobShown"}


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        (TEXT, Kind("string")),
        (NUMBER, Kind("int64")),
        ({"type": "number"}, Kind("double")),
        ({"type": "boolean"}, Kind("bool")),
        ({"type": "string", "contentEncoding": "base64"}, Kind("bytes")),
        ({"enum": ["a", "b"]}, Kind("string")),
        ({"enum": [1, "b"]}, Kind(VALUE, is_message=True)),
        ({}, Kind(VALUE, is_message=True)),
        (JOB, Kind("Job", is_message=True)),
        ({"anyOf": [TEXT, NULL]}, Kind("string", is_nullable=True)),
        ({"anyOf": [NUMBER, TEXT]}, Kind("string")),
        ({"anyOf": [{"type": "array", "items": TEXT}, TEXT]}, Kind("string", is_repeated=True)),
        ({"anyOf": [NUMBER, {"type": "boolean"}]}, Kind(VALUE, is_message=True)),
        ({"type": "array", "items": JOB}, Kind("Job", is_message=True, is_repeated=True)),
        ({"type": "array"}, Kind(VALUE, is_message=True, is_repeated=True)),
        (
            {"type": "array", "prefixItems": [NUMBER, NUMBER], "items": False},
            Kind("int64", is_repeated=True),
        ),
        (
            {"type": "array", "prefixItems": [NUMBER, TEXT], "items": False},
            Kind(VALUE, is_message=True, is_repeated=True),
        ),
        (
            {"type": "array", "items": {"type": "array", "items": TEXT}},
            Kind(LIST, is_message=True, is_repeated=True),
        ),
        (
            {"type": "array", "items": {"type": "object", "additionalProperties": TEXT}},
            Kind(STRUCT, is_message=True, is_repeated=True),
        ),
        (
            {"type": "array", "items": {"anyOf": [TEXT, NULL]}},
            Kind(VALUE, is_message=True, is_repeated=True),
        ),
        ({"type": "object", "additionalProperties": TEXT}, Kind("string", is_map=True)),
        (
            {"type": "object", "additionalProperties": JOB},
            Kind("Job", is_message=True, is_map=True),
        ),
        ({"type": "object", "additionalProperties": {}}, Kind(STRUCT, is_message=True)),
        (
            {"type": "object", "additionalProperties": {"type": "array", "items": TEXT}},
            Kind(STRUCT, is_message=True),
        ),
        ({"type": "object"}, Kind(STRUCT, is_message=True)),
        (
            {"type": "object", "properties": {"a": TEXT}, "additionalProperties": False},
            Kind(STRUCT, is_message=True),
        ),
    ],
    ids=str,
)
def test_the_type_of_a_schema(schema: dict[str, Any], kind: Kind) -> None:
    assert kind_of(schema) == kind


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("JobShown", "Job"),
        ("GpuFull", "Gpu"),
        ("GpuShown", "HeldShare"),
        ("Why", "Why"),
        ("services.api_gateway.views.fabric.LinkShown", "FabricLink"),
    ],
)
def test_the_message_of_a_type(name: str, expected: str) -> None:
    assert message_name(name) == expected
