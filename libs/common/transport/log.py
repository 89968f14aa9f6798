"""The log as a protocol with two twins.

`log_jetstream.JetStreamLog` is the real one, `log_memory.MemoryLog` the one in memory for tests and
simulation; tests/contract runs one suite over both. A log is a gapless sequence of entries. Each
subject has one live writer. An append names the last sequence of its subject that the writer
expects, so the log itself refuses a deposed or lagging writer.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from typing import Final, Protocol

import msgspec

from libs.common.errors import Corrupt, Trimmed, Unavailable
from libs.common.process.cancellation import heed

# Tries of a reader that waits for a leader, or for the scheduler to create the stream.
SETTLE_TRIES: Final = 60
SETTLE_PAUSE_S: Final = 0.5


class Entry(msgspec.Struct, frozen=True):
    """One stored commit: stream sequence (from 1), subject, exact bytes."""

    seq: int
    subject: str
    data: bytes


class AppendRefused(Exception):
    """The subject's last sequence is not the expected one.

    An earlier try of the same append may have been stored.
    """


class AppendUnknown(Exception):
    """There was no answer in time, or no leader. The commit may have been stored."""


class Log(Protocol):
    """The stream FACTS.

    All coroutines raise `errors.Unavailable` if the log does not answer in time.
    """

    async def append(self, subject: str, data: bytes, expected: int) -> int:
        """Store one commit and return its sequence. One try; `writer.py` retries.

        `expected` is the sequence of the subject's last message; 0: none. Raises AppendRefused or
        AppendUnknown.
        """
        ...

    async def last(self, subject: str) -> Entry | None:
        """Return the subject's last entry, read from the stream's leader; None if there is none."""
        ...

    async def get(self, seq: int) -> Entry | None:
        """Return one entry; None if it was trimmed or is not written yet."""
        ...

    async def bounds(self) -> tuple[int, int]:
        """Return the (first, last) sequence of the stream; (1, 0) if it is empty.

        In a trimmed log `first` may be the last commit of a subject, which stays, with a gap behind
        it.
        """
        ...

    def read(self, after: int) -> AsyncIterator[list[Entry]]:
        """Iterate over batches of consecutive entries from `after` + 1 on, without end.

        An empty batch means that there was nothing new for a while. Raises errors.Trimmed if the
        log no longer holds the next entry (load a snapshot first), errors.Corrupt if the log ends
        before `after`.
        """
        ...


def not_held(seq: int) -> Trimmed:
    """Return the error for a missing commit. The log alone cannot tell a trim from damage."""
    text = (
        f"the log no longer holds commit {seq}: it was trimmed (restart: the process begins from "
        "a snapshot), or a file of the log is damaged"
    )
    return Trimmed(
        f"{text}; if a snapshot exists and was not used, an earlier line gives the reason; "
        "see docs/howto/trim.md"
    )


def shorter(last: int, after: int) -> Corrupt:
    """Return the error for a log that ends before a commit that was read."""
    return Corrupt(
        f"the log ends at {last}, before {after}: it was lost or restored; see "
        "docs/howto/restore.md"
    )


def differs(entry: Entry) -> Corrupt:
    """Return the error for a commit that the log no longer holds as it was read."""
    return Corrupt(
        f"commit {entry.seq} ({entry.subject}) is another one now than when it was read: the "
        "replicas of the log differ, or the log was restored. Stop writing, and run `muster audit "
        "verify`, which names the first commit that differs; see docs/howto/restore.md"
    )


class HeldLog(Log, Protocol):
    """The log for a check of everything that it holds, also before the end of a trim."""

    async def next_held(self, seq: int) -> int | None:
        """Return the first sequence from `seq` on that the log holds; None if there is none.

        Raises Unavailable.
        """
        ...


class Extent(msgspec.Struct, frozen=True):
    """The size of the stream: last sequence, stored commits and bytes, its bound (0: none)."""

    last: int
    commits: int
    bytes: int
    bytes_max: int


class TrimmableLog(Log, Protocol):
    """The log for the trimmer, which alone may purge it (`libs/embedded/permissions.py`)."""

    async def extent(self) -> Extent:
        """Return the size of the stream. Raises Unavailable."""
        ...

    async def purge(self, keep: Mapping[str, int]) -> None:
        """Remove all entries of each subject before the given sequence.

        The last commit of each subject always stays: its sequence is the fence, and its number is
        the writer's last. A purge may be partial and can be repeated. Raises Unavailable.
        """
        ...


async def settled_bounds(log: Log) -> tuple[int, int]:
    """Return `log.bounds`, after the log has a leader and exists.

    Raises Unavailable after SETTLE_TRIES.
    """
    for _ in range(SETTLE_TRIES):
        try:
            return await log.bounds()
        except Unavailable:
            heed()
            await asyncio.sleep(SETTLE_PAUSE_S)
    return await log.bounds()


def message_id(subject: str, expected: int, data: bytes) -> str:
    """Return the deduplication id of a commit: a hash of its content.

    With a counter the stream would drop different commits as duplicates.
    """
    return hashlib.sha256(b"%s\n%d\n%s" % (subject.encode(), expected, data)).hexdigest()
