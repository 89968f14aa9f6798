"""The messages of clients. Pure.

A message that is not valid raises BadMessage, which names the field. Tests:
tests/unit/test_ws_protocol.py.
"""

import re
from typing import Any, Final

import msgspec

from libs.common.errors import Refused
from services.api_gateway.intents.fields import UNREADABLE, check_known, check_range, convert
from services.api_gateway.ws.filters import FILTERS, Filter, read_filter

ID_CHARACTERS_MAX: Final = 64
NUMBER_MAX: Final = 1 << 53
KEY_CHARACTERS_MAX: Final = 8_192
_FIELD: Final = re.compile(r"[\w.\[\]]+")
# The beginnings of refusals of whole kinds of fields, before the name of the field.
_UNKNOWN: Final = re.compile(r"field '([^']*)'.*", re.DOTALL)


class BadMessage(Refused):
    """A message that is not valid. `field` is the field that is wrong; empty for the whole.

    `id` is the id that the message has, if it has a valid one.
    """

    def __init__(self, field: str, text: str, message_id: str = "") -> None:
        super().__init__(text)
        self.field = field
        self.id = message_id


class Subscribe(msgspec.Struct, frozen=True):
    """Begin to send the frames of a topic.

    `after` is the commit after which a client continues; 0 if it begins.
    """

    id: str
    topic: str
    filter: Filter
    after: int = 0


class Unsubscribe(msgspec.Struct, frozen=True):
    id: str


class Ping(msgspec.Struct, frozen=True):
    """Ask for an answer with the same number."""

    n: int = 0


class Request(msgspec.Struct, frozen=True):
    """Send a chat to a model. Its answer is streamed."""

    id: str
    model: str
    body: dict[str, Any]


class Cancel(msgspec.Struct, frozen=True):
    id: str


Message = Subscribe | Unsubscribe | Ping | Request | Cancel


class _SubscribeFields(msgspec.Struct):
    id: str
    topic: str
    filter: dict[str, Any] | None = None
    after: int | None = None


_KINDS: Final[dict[str, type[msgspec.Struct]]] = {
    "subscribe": _SubscribeFields,
    "unsubscribe": Unsubscribe,
    "ping": Ping,
    "request": Request,
    "cancel": Cancel,
}


def read_message(data: str | bytes) -> Message:
    """Return the message. Raises BadMessage."""
    fields = _object(data)
    found = fields.pop("op", None)
    if not isinstance(found, str) or found not in _KINDS:
        shown = "missing" if found is None else f"{str(found)[:32]!r} is not known"
        raise BadMessage("op", f"op: {shown}: give one of {', '.join(_KINDS)}", _id_in(fields))
    try:
        return _read(found, fields)
    except BadMessage as error:
        error.id = _id_in(fields)
        raise
    except Refused as error:
        raise BadMessage(_field_of(str(error)), str(error), _id_in(fields)) from error


def read_key(data: str | bytes) -> str:
    """Return the key in the first message of a connection without one. Raises BadMessage."""
    key = _object(data).get("key")
    if not isinstance(key, str) or not 0 < len(key) <= KEY_CHARACTERS_MAX:
        raise BadMessage(
            "key",
            'key: the connection has no key yet: send {"key": "msk_..."} as the first message, or '
            "the header 'Authorization: Bearer <key>'",
        )
    return key


def _object(data: str | bytes) -> dict[str, Any]:
    if isinstance(data, bytes):
        raise BadMessage("", "the message is binary: send JSON as text")
    try:
        found = msgspec.json.decode(data)
    except UNREADABLE as error:
        raise BadMessage("", f"the message is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise BadMessage("", "the message is not a JSON object: send one with the field op")
    return found


def _read(kind: str, fields: dict[str, Any]) -> Message:
    form = _KINDS[kind]
    check_known(fields, form.__struct_fields__, "field")
    found = convert(fields, form)
    if isinstance(found, _SubscribeFields):
        _check_id(found.id)
        return _subscription(found)
    if isinstance(found, Ping):
        check_range("n", found.n, -NUMBER_MAX, NUMBER_MAX)
        return found
    assert isinstance(found, Unsubscribe | Request | Cancel)
    _check_id(found.id)
    return found


def _subscription(fields: _SubscribeFields) -> Subscribe:
    if fields.topic not in FILTERS:
        raise BadMessage(
            "topic",
            f"topic: {fields.topic[:32]!r} is not known: give one of {', '.join(FILTERS)}",
        )
    after = fields.after or 0
    check_range("after", after, 0, NUMBER_MAX)
    return Subscribe(fields.id, fields.topic, read_filter(fields.topic, fields.filter or {}), after)


def _check_id(name: str) -> None:
    if not 0 < len(name) <= ID_CHARACTERS_MAX:
        raise BadMessage(
            "id",
            f"id: it has {len(name)} characters: give 1 to {ID_CHARACTERS_MAX}, your own name for "
            "this subscription or request",
        )


def _id_in(fields: dict[str, Any]) -> str:
    """Return the message's id if it is one, so that its error names it."""
    name = fields.get("id")
    return name if isinstance(name, str) and 0 < len(name) <= ID_CHARACTERS_MAX else ""


def _field_of(text: str) -> str:
    """Return the field that a refusal names."""
    unknown = _UNKNOWN.fullmatch(text)
    if unknown is not None:
        return unknown[1]
    name, colon, _ = text.partition(":")
    return name if colon and _FIELD.fullmatch(name) else ""
