"""Checks of fields by name: unknown names, wrong types, values out of range.

An unknown name is refused with the nearest known one. Pure. Request bodies (the other modules of
this room) and query strings (`http/queries.py`) share these checks.
"""

import difflib
import re
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from libs.common.errors import Refused

T = TypeVar("T")

NAMED_MAX: Final = 5
# Known names that a refusal lists; a cluster may have thousands of nodes.
LISTED_MAX: Final = 100
# The types in msgspec's messages, in the words of JSON and of users.
_TYPES: Final = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "null",
    "object": "a JSON object",
    "str": "a text",
}
_TYPE: Final = re.compile(r"`([a-z]+)`")
_MISSING: Final = re.compile(r"Object missing required field `(\w+)`")
# The errors of msgspec for JSON that is malformed, not UTF-8, or nested too deeply.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def check_known(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise Refused with each unknown name and the nearest known one. `what` is their kind."""
    names = sorted(known)
    unknown = [name for name in given if name not in names]
    if unknown:
        raise Refused("; ".join(_hint(name, names, what) for name in unknown[:NAMED_MAX]))


def _hint(name: str, known: list[str], what: str) -> str:
    near = difflib.get_close_matches(name[:64], known, n=1, cutoff=0.5)
    if near:
        return f"{what} {name[:64]!r} is not known: did you mean {near[0]!r}?"
    if not known:
        return f"{what} {name[:64]!r} does not exist, and there is no other {what}"
    if len(known) == 1:
        return f"{what} {name[:64]!r} is not known: use {known[0]!r}"
    listed = ", ".join(known[:LISTED_MAX]) + (" ..." if len(known) > LISTED_MAX else "")
    return f"{what} {name[:64]!r} is not known: use one of {listed}"


def convert(values: dict[str, Any], kind: type[T], *, strict: bool = True) -> T:
    """Return `values` as a struct. Raises Refused naming the field with the wrong type."""
    try:
        return msgspec.convert(values, kind, strict=strict)
    except msgspec.ValidationError as error:
        field, reason = fault_of(error)
        raise Refused(f"{field or 'the request'}: {reason}") from error


def fault_of(error: msgspec.ValidationError) -> tuple[str, str]:
    """Return the path of the wrong field, empty for the whole value, and what is wrong with it."""
    reason, _, path = str(error).partition(" - at `$")
    field = path.rstrip("`").lstrip(".")
    if missing := _MISSING.fullmatch(reason):
        return ".".join(filter(None, (field, missing[1]))), "missing"
    words = _TYPE.sub(lambda found: _TYPES.get(found[1], found[0]), reason)
    return field, f"{words[:1].lower()}{words[1:]}"


def names_of(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the field names of a struct."""
    return kind.__struct_fields__


def check_one_of(name: str, value: str, known: Iterable[str]) -> None:
    """Raise Refused with the accepted values unless `value` is one of them."""
    words = tuple(known)
    if value not in words:
        raise Refused(f"{name}: {value[:32]!r} is not known: give one of {', '.join(words)}")


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raise Refused with the bounds unless `low` <= `value` <= `high`."""
    if not low <= value <= high:
        raise Refused(f"{name}: {value} is out of bounds: give {low} to {high}")
