"""A process of a later version: its facts have a field that this version does not know, and a
gateway's commits have a fact of a kind that it does not know.

All other processes must fold these commits as if that were not there. Readers of this version skip
fields and kinds that they do not know; a later version that wants more raises `min_reader`, and
then this version ends with TooNew, which is not simulated.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from libs.common.facts import AnyFact
from libs.common.transport.writer import Writer

FIELD: Final = "of_a_later_version"
KIND: Final = "later.kind"
# Its place in a commit (`libs.common.facts.Commit`).
FACTS: Final = 7


def speak_later(writer: Writer, with_kind: bool) -> None:
    """Let a writer's commits look like those of a later version."""
    encode = writer._encode

    def later(facts: Sequence[AnyFact], seen: int) -> bytes:
        return rewritten(encode(facts, seen), with_kind)

    writer._encode = later  # type: ignore[method-assign]


def rewritten(data: bytes, with_kind: bool) -> bytes:
    """Return the commit as a later version would write it."""
    commit: list[Any] = msgpack.unpackb(data, strict_map_key=False)
    for number, fact in enumerate(commit[FACTS]):
        fact[FIELD] = {"number": number, "more": ["x", None]}
    if with_kind:
        commit[FACTS].append({"kind": KIND, "job_id": "j", "list": [1, 2]})
    return bytes(msgpack.packb(commit))
