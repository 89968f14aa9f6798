"""The log on NATS JetStream.

The twin is `log_memory.py`; tests/contract runs one suite over both. The stream is read without
filters, through `feed_nats.py`. Every outcome of an append that is neither stored nor refused is
AppendUnknown. Only the modules of this room import nats-py (`NATS_FILES` in tests/test_tidy.py).
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import (
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
)
from nats.js.errors import APIError, NotFoundError

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.process.cancellation import heed
from libs.common.transport.connection_nats import ASK_TIMEOUT_S
from libs.common.transport.feed_nats import Feed
from libs.common.transport.log import (
    AppendRefused,
    AppendUnknown,
    Entry,
    Extent,
    differs,
    message_id,
    not_held,
    settled_bounds,
    shorter,
)

APPEND_TIMEOUT_S: Final = 2.0
# The server answers when it has removed everything.
PURGE_TIMEOUT_S: Final = 30.0
CREATE_AGAIN_S: Final = 0.5
DEDUPE_WINDOW_S: Final = 600
# No subject ever reaches this sequence: a commit that expects it is refused with the real one.
NEVER: Final = 1 << 62
LAST_TRIES: Final = 40
LAST_PAUSE_S: Final = 0.05
WRONG_SEQUENCE: Final = (10071, 10164)
STREAM_FULL: Final = (10077, 10047)

logger = logging.getLogger(__name__)


def stream_config(replicas: int, max_bytes: int) -> StreamConfig:
    """Return the configuration of FACTS: in files, without expiry and without single deletions.

    `deny_purge` is not set, because trimming purges by sequence and the option can never be unset.
    """
    return StreamConfig(
        name=subjects.STREAM,
        subjects=[subjects.ALL_FACTS],
        storage=StorageType.FILE,
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.NEW,
        num_replicas=replicas,
        max_bytes=max_bytes,
        max_msg_size=1 << 20,
        duplicate_window=DEDUPE_WINDOW_S,
        allow_direct=True,
        deny_delete=True,
    )


async def create_stream(client: Client, replicas: int, max_bytes: int) -> None:
    """Create FACTS unless it exists; never change it. Retry until a leader answers."""
    js = client.jetstream(timeout=ASK_TIMEOUT_S)
    for _ in range(30):
        try:
            await js.stream_info(subjects.STREAM)
            return
        except NotFoundError:
            pass
        except (NatsError, TimeoutError):
            heed()
            await asyncio.sleep(CREATE_AGAIN_S)
            continue
        try:
            await js.add_stream(stream_config(replicas, max_bytes))
            return
        except (NatsError, TimeoutError) as error:
            heed()
            logger.warning("the stream cannot be created yet: %s", error)
            await asyncio.sleep(CREATE_AGAIN_S)
    raise Unavailable("JetStream has no leader after 60 s: start more of its servers")


class JetStreamLog:
    """The log on JetStream; see `log.Log`."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.js = client.jetstream(timeout=ASK_TIMEOUT_S)

    async def append(self, subject: str, data: bytes, expected: int) -> int:
        headers = {
            "Nats-Msg-Id": message_id(subject, expected, data),
            "Nats-Expected-Last-Subject-Sequence": str(expected),
        }
        try:
            ack = await self.js.publish(subject, data, timeout=APPEND_TIMEOUT_S, headers=headers)
        except APIError as error:
            if error.err_code in WRONG_SEQUENCE:
                raise AppendRefused(f"{subject}: {error.description}") from error
            if error.err_code in STREAM_FULL:
                logger.error(
                    "the log is full (%s): trim it, or raise MUSTER_STREAM_BYTES",
                    error.description,
                )
            raise AppendUnknown(f"{subject}: {error}") from error
        except (NatsError, TimeoutError, OSError) as error:
            raise AppendUnknown(f"{subject}: {error or 'no answer'}") from error
        heed()
        return ack.seq

    async def last(self, subject: str) -> Entry | None:
        """Return the last entry of the own subject.

        The leader's refusal of an impossible commit has its sequence. A direct get then reads it,
        again until a replica has it. So a writer needs no right to read other subjects.
        """
        needed = await self._last_seq(subject)
        heed()
        for _ in range(LAST_TRIES):
            found = await self._direct(subject)
            if (found.seq if found else 0) >= needed:
                return found
            await asyncio.sleep(LAST_PAUSE_S)
        raise Unavailable(
            f"the last commit on {subject} cannot be read: check whether a replica of the log is "
            "far behind"
        )

    async def _last_seq(self, subject: str) -> int:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(NEVER)}
        try:
            await self.js.publish(subject, b"", timeout=ASK_TIMEOUT_S, headers=headers)
        except APIError as error:
            number = str(error.description).rpartition("wrong last sequence: ")[2]
            if error.err_code == WRONG_SEQUENCE[0] and number.isdigit():
                return int(number)
            raise Unavailable(
                f"the log did not return the last sequence of {subject} ({error.description})"
            ) from error
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"the log does not answer ({error or 'timeout'}): is its leader up?"
            ) from error
        raise AssertionError("the log stored a commit that it must refuse")

    async def _direct(self, subject: str) -> Entry | None:
        try:
            raw = await self.js.get_msg(subjects.STREAM, subject=subject, direct=True)
        except NotFoundError:
            return None
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"the log does not answer ({error or 'timeout'}): is it up?"
            ) from error
        return Entry(int(raw.seq or 0), str(raw.subject), raw.data or b"")

    async def get(self, seq: int) -> Entry | None:
        return await self._message(seq)

    async def next_held(self, seq: int) -> int | None:
        found = await self._message(seq, or_next=True)
        return found.seq if found is not None else None

    async def _message(self, seq: int, or_next: bool = False) -> Entry | None:
        """Read an entry from the stream's leader. A direct get of a follower may be stale.

        With `or_next` it is the first one from `seq` on.
        """
        subject = subjects.ALL_FACTS if or_next else None
        try:
            raw = await self.js.get_msg(subjects.STREAM, seq, subject, direct=False, next=or_next)
        except NotFoundError:
            return None
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"the log does not answer ({error or 'timeout'}): is its leader up?"
            ) from error
        return Entry(int(raw.seq or 0), str(raw.subject), raw.data or b"")

    async def bounds(self) -> tuple[int, int]:
        state = (await self._info()).state
        return int(state.first_seq or 1), int(state.last_seq)

    async def extent(self) -> Extent:
        info = await self._info()
        return Extent(
            int(info.state.last_seq),
            int(info.state.messages),
            int(info.state.bytes),
            max(0, info.config.max_bytes or 0),
        )

    async def _info(self) -> StreamInfo:
        try:
            info = await self.js.stream_info(subjects.STREAM)
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"the log does not answer ({error or 'timeout'}): are its servers up?"
            ) from error
        heed()
        return info

    async def purge(self, keep: Mapping[str, int]) -> None:
        """Purge each subject with its own request, so the store is locked only briefly.

        A purge takes about 5 us per message.
        """
        js = self.client.jetstream(timeout=PURGE_TIMEOUT_S)
        for subject, seq in keep.items():
            try:
                await js.purge_stream(subjects.STREAM, seq=seq, subject=subject)
            except (NatsError, TimeoutError, OSError) as error:
                raise Unavailable(
                    f"the log was not trimmed on {subject} ({error or 'timeout'}): check that this "
                    "process has the trimmer's key"
                ) from error
            heed()

    async def read(self, after: int) -> AsyncIterator[list[Entry]]:
        """Read through a push subscription.

        If it falls silent, breaks or skips, another one starts after the last good sequence. Raises
        Corrupt if the log then has another commit in the place of the last one that was read, or
        ends before it.
        """
        first, last = await settled_bounds(self)
        if after > last:
            raise shorter(last, after)
        if after + 1 < first:
            raise not_held(after + 1)
        known: Entry | None = None
        while True:
            feed = Feed(self.client, after, known)
            async for batch in feed.batches():
                known = batch[-1] if batch else known
                after += len(batch)
                yield batch
            if feed.differs and known is not None:
                raise differs(known)
            if feed.short and (last := (await settled_bounds(self))[1]) < after:
                raise shorter(last, after)
            if feed.broken:
                await self._refuse_gap(after + 1)

    async def _refuse_gap(self, seq: int) -> None:
        """Raise Trimmed if a skipped commit no longer exists.

        It may just have been lost on the way.
        """
        try:
            found = await self.get(seq)
        except Unavailable:
            return
        if found is None:
            raise not_held(seq)
