"""One subscription to the log on NATS JetStream: a push consumer whose order we check ourselves.

`log_jetstream.py` reads the log through it. A client that is slow loses messages without notice, so
a feed ends as soon as it is silent or skips, and the log makes another one. The server's state of a
consumer is never used: each feed has a new consumer, which begins at the reader's own position. The
next feed may read another replica. So it begins with the last entry that the reader has, and checks
that this replica holds the same bytes. A server that is cut off from the others still sends its
heartbeats, and never anything new. So a quiet feed asks the stream's leader whether it has all.
Tests: tests/contract/test_log.py, tests/integration/test_divergent_log.py,
tests/netns/test_cut_off_server.py.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from libs.common import subjects
from libs.common.process.cancellation import end_all, heed
from libs.common.transport.connection_nats import ASK_TIMEOUT_S
from libs.common.transport.log import Entry

BATCH_MAX: Final = 1_000
# While more bytes than this wait for the reader, the feed does not ask the server for more. The
# server may already have sent another 32 MiB.
HELD_BYTES_MAX: Final = 8 << 20
IDLE_S: Final = 0.5
# Pause between tries to subscribe, and time for calls that may fail while unsubscribing.
GAP_PAUSE_S: Final = 0.25
UNSUBSCRIBE_S: Final = 1.0
# The client changes servers after this time from the first question without an answer: its server
# may be cut off from the others. It is more than an election takes.
LEAVES_S: Final = 10.0
# Without a message or a server heartbeat for this long, the feed ends.
SILENCE_S: Final = 3.0
# Without the entry that the reader has already, or a later one, the feed ends after this time, more
# than a replica needs to catch up: the log may be shorter than it was.
SHORT_S: Final = 10.0
# A feed without anything new asks the stream's leader at this interval.
ASKS_LEADER_S: Final = 5.0
# After a question without an answer, the feed asks again after this pause.
ASKS_AGAIN_S: Final = 0.5
# In a server's heartbeat: the last stream sequence that it has delivered.
DELIVERED: Final = "Nats-Last-Stream"
# Number of tokens in a delivery's reply subject without domain and account.
SHORT_REPLY: Final = 9

logger = logging.getLogger(__name__)


class Feed:
    """One subscription: consecutive batches from `after` + 1 on, until it is silent or skips.

    A push consumer without acknowledgements. The feed answers its flow control itself, in order
    after the data, and not before the reader has taken most of them (HELD_BYTES_MAX). `known` is
    the entry `after` as the reader has it; None: the reader does not have its bytes. `differs`
    becomes true if the log has another entry in its place, `short` if it has neither that entry nor
    a later one, `left` if the client's server or the consumer withholds what the stream's leader
    has.
    """

    def __init__(self, client: Client, after: int, known: Entry | None = None) -> None:
        self.client = client
        self.after = after
        self.known = known
        self.differs = False
        self.short = False
        self.has_entry = known is None
        self.waiting: list[Entry] = []
        self.held_bytes = 0
        # The reply subject of the server's unanswered question whether it may send more; empty if
        # there is no such question.
        self.question = ""
        self.grown = asyncio.Event()
        self.broken = False
        self.left = False
        self.heard = 0.0
        self.grew = 0.0

    async def batches(self) -> AsyncIterator[list[Entry]]:
        loop = asyncio.get_running_loop()
        inbox = self.client.new_inbox()
        subscription = await self.client.subscribe(
            inbox, cb=self._on_message, pending_msgs_limit=-1, pending_bytes_limit=-1
        )
        asking = None
        try:
            await self._consume(inbox)
            self.heard = self.grew = began = loop.time()
            asking = asyncio.create_task(self._ask_leader())
            while not (self.broken or self.left) and loop.time() - self.heard < SILENCE_S:
                if not self.waiting:
                    await self._growth()
                self.short = not self.has_entry and loop.time() - began > SHORT_S
                if self.short:
                    break
                batch, self.waiting = self.waiting[:BATCH_MAX], self.waiting[BATCH_MAX:]
                yield batch
                await self._taken(batch)
            if self.waiting:
                yield self.waiting  # entries before the skip are complete
        finally:
            await end_all([asking] if asking else [])
            await _ignore_errors(subscription.unsubscribe())

    async def _taken(self, batch: list[Entry]) -> None:
        """Let the server send more if the reader has taken enough."""
        self.held_bytes -= sum(len(entry.data) for entry in batch)
        if self.question and self.held_bytes <= HELD_BYTES_MAX:
            question, self.question = self.question, ""
            self.grew = asyncio.get_running_loop().time()
            await _ignore_errors(self.client.publish(question))

    async def _ask_leader(self) -> None:
        """Set `left` when the stream's leader cannot be asked, or has more than came in time."""
        loop = asyncio.get_running_loop()
        answered = loop.time()
        while not self.left:
            quiet_s = loop.time() - max(answered, self.grew)
            if self.question or quiet_s < ASKS_LEADER_S:
                await asyncio.sleep(ASKS_LEADER_S if self.question else ASKS_LEADER_S - quiet_s)
                continue
            self.left = await self._is_withheld()
            answered = loop.time()

    async def _is_withheld(self) -> bool:
        """Ask the stream's leader. Return whether it has commits that do not come.

        Also true if it cannot be asked for LEAVES_S: the client has left its server then.
        """
        asked, before = asyncio.get_running_loop().time(), self.after
        while self.grew <= asked:
            try:
                info = await self.client.jetstream(timeout=ASK_TIMEOUT_S).stream_info(
                    subjects.STREAM
                )
            except (NatsError, TimeoutError, OSError):
                heed()
                await asyncio.sleep(ASKS_AGAIN_S)
                if await self._left(asked) != asked:
                    return True
                continue
            await asyncio.sleep(IDLE_S)
            if int(info.state.last_seq) > before == self.after and not self.question:
                logger.warning("the subscription withholds commits after %d", before)
                return True
            break
        return False

    async def _growth(self) -> None:
        self.grown.clear()
        try:
            async with asyncio.timeout(IDLE_S):
                await self.grown.wait()
        except TimeoutError:
            return

    async def _consume(self, inbox: str) -> None:
        """Create the consumer that pushes to our inbox. Retry until the server answers."""
        config = ConsumerConfig(
            deliver_subject=inbox,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=self.after + (self.known is None),
            ack_policy=AckPolicy.NONE,
            max_deliver=1,
            mem_storage=True,
            num_replicas=1,
            inactive_threshold=30,
            flow_control=True,
            idle_heartbeat=1,
        )
        asked = asyncio.get_running_loop().time()
        while True:
            try:
                await self.client.jetstream(timeout=ASK_TIMEOUT_S).add_consumer(
                    subjects.STREAM, config=config
                )
                return
            except (NatsError, TimeoutError, OSError) as error:
                heed()
                logger.warning("the log cannot be read yet: %s", error or "timeout")
                asked = await self._left(asked)
                await asyncio.sleep(GAP_PAUSE_S)

    async def _left(self, asked: float) -> float:
        """Change servers if no answer came since `asked`; return since when to count now."""
        now = asyncio.get_running_loop().time()
        if now - asked < LEAVES_S:
            return asked
        await self.client.force_reconnect()
        return now

    async def _on_message(self, msg: Msg) -> None:
        self.heard = asyncio.get_running_loop().time()
        if msg.headers is not None and msg.headers.get("Status") == "100":
            if msg.reply and self.held_bytes > HELD_BYTES_MAX:
                self.question = msg.reply
            elif msg.reply:
                await _ignore_errors(self.client.publish(msg.reply))
            self._heartbeat(int(msg.headers.get(DELIVERED, 0)))
            return
        seq = _sequence(msg.reply)
        self.has_entry = True
        if self.known is not None and seq == self.known.seq:
            self.differs = self.known != Entry(seq, msg.subject, msg.data)
            self.broken = self.broken or self.differs
        elif seq == self.after + 1 and not self.differs:
            self.after = seq
            self.grew = self.heard
            self.held_bytes += len(msg.data)
            self.waiting.append(Entry(seq, msg.subject, msg.data))
        elif seq > self.after:
            logger.warning(
                "the subscription skipped from %d to %d: subscribing again", self.after, seq
            )
            self.broken = True
        self.grown.set()

    def _heartbeat(self, delivered: int) -> None:
        """Compare what came with the sequence up to which the server has delivered.

        What it sent into a connection that broke does not come again, and while nothing new is
        written no skip shows that.
        """
        if delivered > self.after:
            logger.warning(
                "the subscription lost commits after %d, delivered up to %d: subscribing again",
                self.after,
                delivered,
            )
            self.broken = True
            self.grown.set()


def _sequence(reply: str) -> int:
    """Return the stream sequence in a delivery's reply subject.

    The subject is $JS.ACK.STREAM.CONSUMER.DELIVERED.SEQUENCE and more. Newer servers may put domain
    and account before the stream. nats-py's own parser creates three objects and a date each time.
    """
    tokens = reply.split(".")
    return int(tokens[5 if len(tokens) == SHORT_REPLY else 7])


async def _ignore_errors(call: Coroutine[None, None, None]) -> None:
    """Await a call that may fail because the connection is down. Then another feed starts."""
    try:
        async with asyncio.timeout(UNSUBSCRIBE_S):
            await call
    except (NatsError, TimeoutError, OSError):
        return
