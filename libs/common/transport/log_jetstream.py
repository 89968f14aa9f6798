"""The log on NATS JetStream, and the connection that everything of one process shares. nats-py is
used here and in `bus_nats.py` alone.

The twin is `log_memory.py`; both are held to tests/contract. Facts behind the settings: the stream
is read without filters, by an ordered stream of direct pushes whose sequence we check ourselves (a
client's slow-consumer episode loses messages silently), nothing is buffered while disconnected (a
timed-out publish must not be written later by surprise), and every outcome that is not a plain yes
or no is AppendUnknown.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from typing import Any, Final

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    StreamInfo,
)
from nats.js.errors import APIError, NotFoundError

from libs.common import subjects
from libs.common.errors import Corrupt, Refused, Unavailable
from libs.common.process.cancellation import heed
from libs.common.settings.settings import Settings
from libs.common.transport.log import (
    AppendRefused,
    AppendUnknown,
    Entry,
    Extent,
    message_id,
    not_held,
    settled_bounds,
)

APPEND_TIMEOUT_S: Final = 2.0
ASK_TIMEOUT_S: Final = 2.0
# The server answers when it has removed everything.
PURGE_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10.0
# A client pings its server so often, and leaves it when more pings than these are unanswered: at
# the latest after LEAVES_SILENT_SERVER_S, which must stay well within a third of a lease
# (`lease_ms`), for a frozen server answers nothing and closes nothing.
PING_S: Final = 1.25
PINGS_UNANSWERED_MAX: Final = 2
LEAVES_SILENT_SERVER_S: Final = PING_S * (PINGS_UNANSWERED_MAX + 1)
# Every server of a cluster shows this name in its certificate, whatever its address is
# (`libs/embedded/certificates.py`).
TLS_NAME: Final = "muster"
BATCH_MAX: Final = 1_000
IDLE_S: Final = 0.5
CREATE_AGAIN_S: Final = 0.5
# Between tries to make a subscription, and for what may fail while it is unmade.
GAP_PAUSE_S: Final = 0.25
UNSUBSCRIBE_S: Final = 1.0
# Without a message or a server heartbeat for this long, the subscription is made anew.
SILENCE_S: Final = 3.0
DEDUPE_WINDOW_S: Final = 600
# No subject ever stands here: a commit that expects it asks where the subject stands.
NEVER: Final = 1 << 62
LAST_TRIES: Final = 40
LAST_PAUSE_S: Final = 0.05
WRONG_SEQUENCE: Final = (10071, 10164)
# The parts of a delivery's reply subject without domain and account.
SHORT_REPLY: Final = 9
STREAM_FULL: Final = (10077, 10047)

logger = logging.getLogger(__name__)


async def connect(
    servers: Sequence[str],
    name: str,
    seed: bytes | None = None,
    ca_file: str = "",
    within_s: float = CONNECT_TIMEOUT_S,
) -> Client:
    """A connection that never gives up.

    `seed` is the process's nkey; `name` shows in the server's own lists. With `ca_file` it is TLS
    from the first byte, to a server that shows the cluster's name under that authority.

    Raises Unavailable when no server answers within `within_s`.
    """

    async def on_error(error: Exception) -> None:
        logger.warning("nats: %s", error)

    options: dict[str, Any] = {}
    if ca_file:
        logging.getLogger("asyncio").addFilter(_no_end_of_stream)
        options = {"tls": _trusting(ca_file), "tls_hostname": TLS_NAME, "tls_handshake_first": True}
    if seed is not None:
        options |= {"nkeys_seed_str": seed.decode(), "inbox_prefix": f"_INBOX_{name}".encode()}
    try:
        return await asyncio.wait_for(
            nats.connect(
                servers=list(servers),
                name=name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.1,
                ping_interval=PING_S,
                max_outstanding_pings=PINGS_UNANSWERED_MAX,
                pending_size=0,
                error_cb=on_error,
                **options,
            ),
            within_s,
        )
    except (NatsError, OSError, TimeoutError) as error:
        raise Unavailable(
            f"no NATS server answers at {', '.join(servers)} ({error}): is it up?"
        ) from error


async def connect_as(
    settings: Settings, name: str, seed: bytes | None = None, within_s: float = 0.0
) -> Client:
    """`connect` as the settings say; `seed` is another identity's than the process's own,
    `within_s` a shorter patience.
    """
    patience_s = within_s or settings.log_connect_ms / 1_000
    return await connect(
        settings.servers, name, seed or settings.nkey_seed, settings.nats_ca_file, patience_s
    )


def _no_end_of_stream(record: logging.LogRecord) -> bool:
    """Each TLS connection of nats-py that the server ends is a warning of asyncio,
    about nothing.
    """
    return "eof_received() has no effect" not in record.getMessage()


def _trusting(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise Refused(
            f"the authority's certificate {ca_file} cannot be read ({error}): check "
            "MUSTER_NATS_CA_FILE"
        ) from error


def stream_config(replicas: int, max_bytes: int) -> StreamConfig:
    """FACTS: files, nothing thrown away, nothing deleted one by one.

    Not deny_purge: trimming purges by sequence, and it can never be unset.
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
    """Make FACTS unless it is there; never changes one that is. Tries until a leader answers."""
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
            logger.warning("the stream cannot be made yet: %s", error)
            await asyncio.sleep(CREATE_AGAIN_S)
    raise Unavailable("JetStream has no leader after 60 s: are enough of its servers up?")


class JetStreamLog:
    """See `log.Log`."""

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
                    "the log is full (%s): trim it, or give the stream more bytes",
                    error.description,
                )
            raise AppendUnknown(f"{subject}: {error}") from error
        except (NatsError, TimeoutError, OSError) as error:
            raise AppendUnknown(f"{subject}: {error or 'no answer'}") from error
        heed()
        return ack.seq

    async def last(self, subject: str) -> Entry | None:
        """Our own subject's only: where it stands is asked of the leader, by a commit that it must
        refuse; the message is then read by direct get, again until a replica has it.

        So a writer needs no right to read anything else.
        """
        needed = await self._last_seq(subject)
        heed()
        for _ in range(LAST_TRIES):
            found = await self._direct(subject)
            if (found.seq if found else 0) >= needed:
                return found
            await asyncio.sleep(LAST_PAUSE_S)
        raise Unavailable(
            f"the last commit on {subject} cannot be read: is a replica of the log far behind?"
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
                f"the log does not say where {subject} stands ({error.description})"
            ) from error
        except (NatsError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"the log does not answer ({error or 'timeout'}): is its leader up?"
            ) from error
        raise AssertionError("the log took a commit that it must refuse")

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
        return await self._message(seq, None)

    async def _message(self, seq: int | None, subject: str | None) -> Entry | None:
        """Through the stream's leader, never a follower's direct get: that one may be stale."""
        try:
            raw = await self.js.get_msg(subjects.STREAM, seq, subject, direct=False)
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
        """One request a subject: the stream's store is locked only as long as each takes (5 us a
        message).
        """
        js = self.client.jetstream(timeout=PURGE_TIMEOUT_S)
        for subject, seq in keep.items():
            try:
                await js.purge_stream(subjects.STREAM, seq=seq, subject=subject)
            except (NatsError, TimeoutError, OSError) as error:
                raise Unavailable(
                    f"the log was not trimmed on {subject} ({error or 'timeout'}): may this "
                    "key purge?"
                ) from error
            heed()

    async def read(self, after: int) -> AsyncIterator[list[Entry]]:
        """A push subscription, made anew from the last good sequence whenever it falls silent,
        breaks, or skips.
        """
        first, last = await settled_bounds(self)
        if after > last:
            raise Corrupt(
                f"the log ends at {last}, before {after}: it was lost or restored; see "
                "docs/howto/restore.md"
            )
        if after + 1 < first:
            raise not_held(after + 1)
        while True:
            feed = Feed(self.client, after)
            async for batch in feed.batches():
                after += len(batch)
                yield batch
            if feed.broken:
                await self._refuse_gap(after + 1)

    async def _refuse_gap(self, seq: int) -> None:
        """What was skipped may have been lost on its way, or is not there any more."""
        try:
            found = await self.get(seq)
        except Unavailable:
            return
        if found is None:
            raise not_held(seq)


class Feed:
    """One subscription's life: consecutive batches from `after` + 1 on; it ends when it is no
    longer to be trusted.

    A push consumer without acknowledgements whose flow control we answer ourselves, in order behind
    the data: what is not yet taken bounds what the server sends.
    """

    def __init__(self, client: Client, after: int) -> None:
        self.client = client
        self.after = after
        self.waiting: list[Entry] = []
        self.grown = asyncio.Event()
        self.broken = False
        self.heard = 0.0

    async def batches(self) -> AsyncIterator[list[Entry]]:
        loop = asyncio.get_running_loop()
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(
            inbox, cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        try:
            await self._consume(inbox)
            self.heard = loop.time()
            while not self.broken and loop.time() - self.heard < SILENCE_S:
                if not self.waiting:
                    await self._growth()
                batch, self.waiting = self.waiting[:BATCH_MAX], self.waiting[BATCH_MAX:]
                yield batch
            if self.waiting:
                yield self.waiting  # what came before the skip is good
        finally:
            await _quietly(subscription.unsubscribe())

    async def _growth(self) -> None:
        self.grown.clear()
        try:
            async with asyncio.timeout(IDLE_S):
                await self.grown.wait()
        except TimeoutError:
            return

    async def _consume(self, inbox: str) -> None:
        """Have the server push to our inbox, as soon as it can."""
        config = ConsumerConfig(
            deliver_subject=inbox,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.after + 1,
            ack_policy=AckPolicy.NONE,
            max_deliver=1,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=30,
            flow_control=True,
            idle_heartbeat=1,
        )
        while True:
            try:
                await self.client.jetstream(timeout=ASK_TIMEOUT_S).add_consumer(
                    subjects.STREAM, config=config
                )
                return
            except (NatsError, TimeoutError, OSError) as error:
                heed()
                logger.warning("the log cannot be read yet: %s", error or "timeout")
                await asyncio.sleep(GAP_PAUSE_S)

    async def _on_message(self, msg: Msg) -> None:
        self.heard = asyncio.get_running_loop().time()
        if msg.headers is not None and msg.headers.get("Status") == "100":
            if msg.reply:
                await _quietly(self.client.publish(msg.reply))
            return
        seq = _sequence(msg.reply)
        if seq == self.after + 1:
            self.after = seq
            self.waiting.append(Entry(seq, msg.subject, msg.data))
        elif seq > self.after:
            logger.warning(
                "the subscription skipped from %d to %d: it is made anew", self.after, seq
            )
            self.broken = True
        self.grown.set()


def _sequence(reply: str) -> int:
    """The stream's sequence out of a delivery's reply subject,
    $JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE and more; newer servers may put domain and account in
    front of the stream. nats-py's own way makes three objects and a date of each.
    """
    tokens = reply.split(".")
    return int(tokens[5 if len(tokens) == SHORT_REPLY else 7])


async def _quietly(call: Coroutine[None, None, None]) -> None:
    """For what may fail because the connection is down: the feed is made anew then."""
    try:
        async with asyncio.timeout(UNSUBSCRIBE_S):
            await call
    except (NatsError, TimeoutError, OSError):
        return
