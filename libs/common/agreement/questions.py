"""Questions to the leader over the bus: the key of the first entry with another value.

Tests: tests/integration/test_gateway_agreement.py.
"""

from collections.abc import Awaitable
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.agreement.asking import HashAnswer, HashAsk, buckets_of, entries_of
from libs.common.agreement.follower import Agreement
from libs.common.agreement.tree import differing_key
from libs.common.errors import Diverged, Unavailable
from libs.common.transport.bus import Bus

ASK_S: Final = 5.0


async def ask_leader(bus: Bus, question: HashAsk) -> HashAnswer:
    """Ask the scheduler about its hashes. Raises Unavailable."""
    data = await bus.request(
        subjects.ask_scheduler("hashes"), msgspec.msgpack.encode(question), ASK_S
    )
    try:
        return msgspec.msgpack.decode(data, type=HashAnswer)
    except msgspec.DecodeError as error:
        raise Unavailable(f"the scheduler's answer about hashes cannot be read: {error}") from error


async def naming_keys(running: Awaitable[None], bus: Bus, agreement: Agreement) -> None:
    """Run a member. If it ends because it diverged, name the first entry that differs from the
    leader's in the error.
    """
    try:
        await running
    except Diverged as error:
        raise await _with_key(bus, agreement, error) from error


async def _with_key(bus: Bus, agreement: Agreement, error: Diverged) -> Diverged:
    part = error.parts[0]
    try:
        key = await _first_key(bus, agreement, error.seq, part)
    except Unavailable:
        key = ""
    if not key:
        return error
    text = f"{error}. The first entry that differs is {key} of {part}"
    return Diverged(text, seq=error.seq, parts=error.parts)


async def _first_key(bus: Bus, agreement: Agreement, seq: int, part: str) -> str:
    """Return the first key that differs; empty if a side has no tree of that commit any more."""
    if agreement.tree is None or next(reversed(agreement.kept), 0) != seq:
        return ""
    for bucket in buckets_of(part):
        found = await ask_leader(bus, HashAsk(seq, part, bucket))
        if not found.is_known:
            return ""
        key = differing_key(entries_of(agreement.tree, part, bucket), found.entries)
        if key:
            return key
    return ""
