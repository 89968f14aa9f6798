"""The log: what every service reads and appends to, as one small protocol with two twins.

`log_jetstream.JetStreamLog` is the real one, `log_memory.MemoryLog` the in-memory twin of tests and
simulation; tests/contract holds both to one suite. A log is a gapless sequence of entries; each
subject has one live writer, and an append names the subject's last sequence that it expects, so
that a deposed or lagging writer is refused by the log itself.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from typing import Final, Protocol

import msgspec

from libs.common.errors import Trimmed, Unavailable
from libs.common.process.cancellation import heed

# How long a reader waits for a leader, or for the scheduler to make the stream.
SETTLE_TRIES: Final = 60
SETTLE_PAUSE_S: Final = 0.5


class Entry(msgspec.Struct, frozen=True):
    """One stored commit: stream sequence (from 1), subject, exact bytes."""

    seq: int
    subject: str
    data: bytes


class AppendRefused(Exception):
    """The subject's last sequence is not the expected one (which may also mean: our own earlier try
    was stored).
    """


class AppendUnknown(Exception):
    """No answer in time, or no leader: the commit may or may not have been stored."""


class Log(Protocol):
    """The stream FACTS.

    All coroutines raise `errors.Unavailable` when the log does not answer within their own bound.
    """

    async def append(self, subject: str, data: bytes, expected: int) -> int:
        """Store one commit and return its sequence; one try, no retry (see `writer.py`, which owns
        the protocol of retries).

        `expected` is the sequence of the subject's last message, 0 for none. Raises AppendRefused
        or AppendUnknown.
        """
        ...

    async def last(self, subject: str) -> Entry | None:
        """The subject's last entry, read from the stream's leader; None when it has none."""
        ...

    async def get(self, seq: int) -> Entry | None:
        """One entry by sequence; None when it was trimmed or is not yet written."""
        ...

    async def bounds(self) -> tuple[int, int]:
        """(first, last) sequence of the stream; (1, 0) when it is empty.

        Of a trimmed log `first` may be some subject's last commit, which stays, with a gap behind
        it.
        """
        ...

    def read(self, after: int) -> AsyncIterator[list[Entry]]:
        """Batches of consecutive entries from `after` + 1 on, for ever; an empty batch means:
        caught up, nothing new for a while.

        Raises errors.Trimmed when the next entry is not there any more (load a snapshot first),
        errors.Corrupt when the log ends before `after`.
        """
        ...


def not_held(seq: int) -> Trimmed:
    """A reader's next commit is not there. The log alone cannot tell a trim from damage."""
    text = (
        f"the log no longer holds commit {seq}: trimmed, and this start or the next begins from "
        "a snapshot, or a file of it is damaged"
    )
    return Trimmed(
        f"{text}; if a snapshot was there and was not used, a line before this one says why; "
        "see docs/howto/trim.md"
    )


class Extent(msgspec.Struct, frozen=True):
    """How much the stream holds: the last sequence ever given, the commits and bytes still there,
    its bound (0: none).
    """

    last: int
    commits: int
    bytes: int
    bytes_max: int


class TrimmableLog(Log, Protocol):
    """The trimmer's way to the log: only its identity may purge
    (`libs/embedded/permissions.py`).
    """

    async def extent(self) -> Extent:
        """Raises Unavailable."""
        ...

    async def purge(self, keep: Mapping[str, int]) -> None:
        """Remove, of each subject named, all that lies before the sequence given; that entry stays.

        So each subject's last commit is always there: its sequence is the fence, and its number the
        writer's place. May be done in part and then repeated. Raises Unavailable.
        """
        ...


async def settled_bounds(log: Log) -> tuple[int, int]:
    """`log.bounds`, asked again while the log has no leader yet, or is not made yet.

    Raises Unavailable at last.
    """
    for _ in range(SETTLE_TRIES):
        try:
            return await log.bounds()
        except Unavailable:
            heed()
            await asyncio.sleep(SETTLE_PAUSE_S)
    return await log.bounds()


def message_id(subject: str, expected: int, data: bytes) -> str:
    """The dedupe id of a commit: a hash of what it is, for a counter would make the stream drop
    different commits as duplicates.
    """
    return hashlib.sha256(b"%s\n%d\n%s" % (subject.encode(), expected, data)).hexdigest()
