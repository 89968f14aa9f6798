"""What every fact is. Pure; the kinds stand in `facts.py`, which alone is imported elsewhere."""

import msgspec


class Fact(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    """The base of all facts; `kind` (dotted, stable) is the tag on the wire."""


class Unknown(Fact, frozen=True, tag="?"):
    """A fact of a later version, or one that cannot be read: kept as bytes, skipped by every fold,
    never written.
    """

    name: str
    raw: bytes


class Ignored(Unknown, frozen=True, tag="!"):
    """A whole commit of an untrusted writer that readers ignore, and why (`reading.py`).

    Never written.
    """

    reason: str = ""
