"""The base of all facts. Pure; other packages import facts from `facts/__init__.py` only."""

import msgspec


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
