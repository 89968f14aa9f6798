"""The bounds of facts and commits in bytes, and the checks against them.

Pure. Other packages import these from `facts/__init__.py`. Tests: tests/unit/test_facts.py.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.facts import packing
from libs.common.facts.fact import Fact, kind_of

FACT_BYTES_MAX: Final = 64 << 10
COMMIT_BYTES_MAX: Final = 512 << 10
# Kept for what a commit holds beside its facts.
ENVELOPE_BYTES: Final = 1 << 10

_encoder: Final = msgspec.msgpack.Encoder()


def fits(facts: Sequence[Fact], writer: str) -> bool:
    """Return whether one commit of this writer can hold the facts.

    Call it before the facts are applied, because applied facts must be recorded.
    """
    plain, room = _encoder.encode(facts), COMMIT_BYTES_MAX - ENVELOPE_BYTES
    return len(plain) <= room or (
        len(plain) <= packing.unpacked_max(writer) and len(packing.pack(plain)) <= room
    )


def size_of(fact: Fact) -> int:
    """Return the bytes that the fact takes in a plain commit."""
    return len(_encoder.encode(fact))


def check_fact_size(fact: Fact) -> None:
    """Raise Refused if a fact is larger than FACT_BYTES_MAX.

    Edges call it before they record a fact.
    """
    size = size_of(fact)
    if size > FACT_BYTES_MAX:
        raise Refused(
            f"{kind_of(fact)} of {size} bytes is over the bound of {FACT_BYTES_MAX}: shorten "
            "its texts and lists"
        )
