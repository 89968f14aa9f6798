"""Fields by name: an unknown one is refused with the nearest known name, a wrong type in the
reader's words.

Pure. Shared by request bodies (`intents.py`) and query strings (`http/queries.py`).
"""

import difflib
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec

from libs.common.errors import Refused

T = TypeVar("T")

NAMED_MAX: Final = 5
# What msgspec says of JSON that it does not take: malformed, no UTF-8, nested too deeply.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def check_known(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raises Refused naming each unknown field and what may have been meant."""
    names = sorted(known)
    unknown = [name for name in given if name not in names]
    if unknown:
        raise Refused("; ".join(_hint(name, names, what) for name in unknown[:NAMED_MAX]))


def _hint(name: str, known: list[str], what: str) -> str:
    near = difflib.get_close_matches(name[:64], known, n=1, cutoff=0.5)
    if near:
        return f"{what} {name[:64]!r} is not known: did you mean {near[0]!r}?"
    return f"{what} {name[:64]!r} is not known: the known ones are {', '.join(known)}"


def convert(values: dict[str, Any], kind: type[T], *, strict: bool = True) -> T:
    """`values` as a struct. Raises Refused naming the field that has a wrong type."""
    try:
        return msgspec.convert(values, kind, strict=strict)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$")
        field = path.rstrip("`").lstrip(".") or "the request"
        raise Refused(f"{field}: {reason[:1].lower()}{reason[1:]}") from error


def names_of(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind))


def check_one_of(name: str, value: str, known: Iterable[str]) -> None:
    """Raises Refused naming the field and its words."""
    words = tuple(known)
    if value not in words:
        raise Refused(f"{name}: {value[:32]!r} is not known: give one of {', '.join(words)}")


def check_range(name: str, value: int, low: int, high: int) -> None:
    """Raises Refused naming the field and its bounds."""
    if not low <= value <= high:
        raise Refused(f"{name}: {value} is out of bounds: give {low} to {high}")
