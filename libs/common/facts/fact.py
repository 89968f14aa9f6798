"""What every fact is. Pure; the kinds stand in `facts.py`, which alone is imported elsewhere."""

import msgspec


class Fact(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    """The base of all facts; `kind` (dotted, stable) is the tag on the wire."""
