"""Messages to fields, and JSON to messages.

Pure. A request's fields are those that were set. An answer may come from another version of a
scheduler or from a model's server: what does not fit into its message is left out.
Tests: tests/unit/test_rpc_conversion.py.
"""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import msgspec
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from libs.rpc.messages import class_of

# JSON of any form, which protobuf itself converts.
WELL_KNOWN: Final = frozenset(
    f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue")
)
INT64: Final = range(-(1 << 63), 1 << 63)
# The largest whole number that a double holds exactly.
WHOLE_MAX: Final = 1 << 53

Fields = dict[str, Any]
Convert = Callable[[Any], Any]


def fields_of(message: Message) -> Fields:
    """Return the fields that are set. Raises ValueError for JSON that no text has, such as NaN."""
    return {field.name: _field(field, value) for field, value in message.ListFields()}


def _field(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401  any field
    kind = field.message_type
    if kind is None:
        return list(value) if field.is_repeated else value
    if kind.GetOptions().map_entry:
        nested = kind.fields_by_name["value"].message_type is not None
        return {name: fields_of(each) if nested else each for name, each in value.items()}
    plain = _json if kind.full_name in WELL_KNOWN else fields_of
    return [plain(each) for each in value] if field.is_repeated else plain(value)


def _json(message: Message) -> Any:  # noqa: ANN401  JSON
    """Return JSON of any form. Raises ValueError for NaN and infinity."""
    return _whole(json_format.MessageToDict(message))


def _whole(value: Any) -> Any:  # noqa: ANN401  JSON
    """Return 2 for 2.0: protobuf's JSON has doubles only."""
    if isinstance(value, dict):
        return {name: _whole(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < WHOLE_MAX:
        return int(value)
    return value


def encoded(descriptor: Descriptor, value: object) -> bytes:
    """Return an answer's message, encoded."""
    fields = _converter(descriptor)(value)
    data: bytes = class_of(descriptor)(**(fields or {})).SerializeToString()
    return data


@cache
def _converter(descriptor: Descriptor) -> Convert:
    """Return a function from a JSON object to the arguments of a message; None for no object."""
    rows: list[tuple[str, Convert | None]] = []

    def convert(value: object) -> Fields | None:
        if not isinstance(value, dict):
            return None
        found: Fields = {}
        for name, change in rows:
            given = value.get(name)
            if given is not None:
                kept = given if change is None else change(given)
                if kept is not None:
                    found[name] = kept
        return found

    if descriptor.full_name in WELL_KNOWN:
        return _same
    # The rows come after the function, because a message may contain itself.
    rows += [(field.name, _change(field)) for field in descriptor.fields]
    return convert


def _same(value: object) -> object:
    return value


def _change(field: FieldDescriptor) -> Convert:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        inner = _change(kind.fields_by_name["value"])
        return lambda value: _map(value, inner)
    one = _SCALARS[field.type] if kind is None else _converter(kind)
    if not field.is_repeated:
        return one
    return lambda value: _list(value, one)


def _list(value: object, change: Convert) -> list[Any] | None:
    if not isinstance(value, list):
        return None
    return [kept for each in value if (kept := change(each)) is not None]


def _map(value: object, change: Convert) -> Fields | None:
    if not isinstance(value, dict):
        return None
    return {name: kept for name, each in value.items() if (kept := change(each)) is not None}


def _text(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _integer(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if isinstance(value, int) and value in INT64 else None


def _double(value: object) -> float | None:
    return value if isinstance(value, int | float) else None


def _bool(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _bytes(value: object) -> bytes | None:
    if isinstance(value, bytes):
        return value
    try:
        return b64decode(value, validate=True) if isinstance(value, str) else None
    except NotBase64:
        return None


_SCALARS: Final[dict[int, Convert]] = {
    FieldDescriptor.TYPE_STRING: _text,
    FieldDescriptor.TYPE_INT64: _integer,
    FieldDescriptor.TYPE_DOUBLE: _double,
    FieldDescriptor.TYPE_BOOL: _bool,
    FieldDescriptor.TYPE_BYTES: _bytes,
}
