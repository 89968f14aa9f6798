"""The base of all facts. Pure; other packages import facts from `facts/__init__.py` only."""

from typing import Final

import msgspec

NUMBER_MAX: Final = 1 << 53


class Fact(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    """The base of all facts; `kind` (dotted, stable) is the tag on the wire."""


class Unknown(Fact, frozen=True, tag="?"):
    """A fact of a later version, or one that cannot be decoded.

    It is kept as bytes. Every fold skips it, and no process writes it.
    """

    name: str
    raw: bytes


class Ignored(Unknown, frozen=True, tag="!"):
    """A whole commit of an untrusted writer that readers ignore (`reading.py`).

    `reason` is the cause. No process writes it.
    """

    reason: str = ""


class Unentitled(Unknown, frozen=True, tag="#"):
    """A fact that its writer may not record (`reading.py`). Every fold skips it.

    `reason` says which fact it was. `distrusts` is not empty if the fact is also out of all bounds,
    for which readers distrust a node. No process writes it.
    """

    reason: str = ""
    distrusts: str = ""


def next_number(number: int) -> int:
    """Return the number of a writer's next commit; after NUMBER_MAX it is 1 again."""
    return number % NUMBER_MAX + 1


def kind_of(fact: Fact) -> str:
    """Return the dotted kind of a fact."""
    return fact.name if isinstance(fact, Unknown) else str(fact.__struct_config__.tag)
