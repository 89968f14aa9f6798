"""Choose the protobuf type for a JSON schema.

Pure. A text or a number alike becomes a text, because the routes read both. JSON of any form
becomes a well-known type of protobuf, whose numbers are doubles. Tests:
tests/unit/test_proto_kinds.py.
"""

from typing import Any, Final, NamedTuple

Schema = dict[str, Any]

MARK: Final = "#/components/schemas/"
SCALARS: Final = {"string": "string", "integer": "int64", "number": "double", "boolean": "bool"}
STRUCT: Final = "google.protobuf.Struct"
VALUE: Final = "google.protobuf.Value"
LIST: Final = "google.protobuf.ListValue"
WELL_KNOWN: Final = (STRUCT, VALUE, LIST)
# Types of the gateway whose plain names would mislead beside each other.
RENAMED: Final = {
    "Array": "ArraySpec",
    "Allocation": "AllocationSpec",
    "GpuShown": "HeldShare",
    "GpuFull": "Gpu",
    "GpuFullList": "GpuList",
    "NodeFull": "NodeDetails",
}


class Kind(NamedTuple):
    """A field's type: a scalar's name, or a message's. `is_map` has texts as keys."""

    name: str
    is_message: bool = False
    is_repeated: bool = False
    is_map: bool = False
    is_nullable: bool = False

    @property
    def is_scalar(self) -> bool:
        return not (self.is_message or self.is_repeated or self.is_map)


def message_name(name: str) -> str:
    """Return the name of the message for a type of the description."""
    module, _, plain = name.rpartition(".")
    plain = RENAMED.get(plain) or plain.removesuffix("Shown")
    # Types of one name are told apart by their modules.
    return f"{module.rpartition('.')[2].title()}{plain}" if module else plain


def kind_of(schema: Schema) -> Kind:
    """Return the type of a field."""
    if "$ref" in schema:
        return Kind(message_name(str(schema["$ref"]).removeprefix(MARK)), is_message=True)
    if "anyOf" in schema:
        return _union(schema["anyOf"])
    kind = schema.get("type")
    if kind == "array":
        return _array(schema)
    if kind == "object":
        return _object(schema)
    if "enum" in schema and all(isinstance(each, str) for each in schema["enum"]):
        return Kind("string")
    if kind == "string" and schema.get("contentEncoding") == "base64":
        return Kind("bytes")
    return Kind(SCALARS[kind]) if kind in SCALARS else Kind(VALUE, is_message=True)


def _union(schemas: list[Schema]) -> Kind:
    others = [each for each in schemas if each.get("type") != "null"]
    nullable = len(others) < len(schemas)
    kinds = list(dict.fromkeys(kind_of(each) for each in others))
    if len(kinds) == 1:
        return kinds[0]._replace(is_nullable=nullable)
    if Kind("string", is_repeated=True) in kinds and Kind("string") in kinds:
        return Kind("string", is_repeated=True)
    if all(kind.is_scalar and kind.name in ("string", "int64") for kind in kinds):
        return Kind("string", is_nullable=nullable)
    return Kind(VALUE, is_message=True, is_nullable=nullable)


def _array(schema: Schema) -> Kind:
    """Return the type of a list. A list of lists is one of any JSON."""
    items = schema.get("prefixItems") or [schema.get("items") or {}]
    kinds = list(dict.fromkeys(kind_of(each) for each in items))
    kind = kinds[0] if len(kinds) == 1 else Kind(VALUE, is_message=True)
    if kind.is_repeated:
        kind = Kind(LIST, is_message=True)
    if kind.is_map:
        kind = Kind(STRUCT, is_message=True)
    if kind.is_nullable:
        kind = Kind(VALUE, is_message=True)
    return kind._replace(is_repeated=True)


def _object(schema: Schema) -> Kind:
    values = schema.get("additionalProperties")
    if not isinstance(values, dict) or "properties" in schema:
        return Kind(STRUCT, is_message=True)
    kind = kind_of(values)
    if kind.is_repeated or kind.is_map or kind.is_nullable or kind.name in WELL_KNOWN:
        return Kind(STRUCT, is_message=True)
    return kind._replace(is_map=True)
