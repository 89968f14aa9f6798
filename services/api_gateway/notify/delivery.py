"""The deliveries to one destination: in the order of the log, one at a time, each until it is
accepted.

The destination's position is stored after each accepted message, so a message may come twice with
the same id, but never after a later one, and none is left out. A destination that does not answer
delays only itself: beyond QUEUE_MAX messages wait in the log, not in memory. Tests:
tests/integration/test_notify_delivery.py.
"""

import asyncio
import logging
import random
from collections import deque
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

import msgspec

from libs.common.errors import Corrupt, Refused, Unavailable
from libs.common.state.notifications import Destination
from services.api_gateway.notify.body import Sealed, agreed, vault_name
from services.api_gateway.notify.messages import Notice
from services.api_gateway.notify.positions import WHOLE, Position, Progress
from services.api_gateway.notify.sending import SEND_S
from services.api_gateway.secrets.vault import Vault

if TYPE_CHECKING:
    from services.api_gateway.notify.notifier import Notifier

QUEUE_MAX: Final = 256
BACKOFF_FIRST_S: Final = 1.0
BACKOFF_MAX_S: Final = 300.0
# A message that could not be delivered for so long is given up, with a count.
KEEP_S: Final = 259_200
# How often the position of a destination without messages is stored.
IDLE_SAVE_S: Final = 30.0
LEASE_POLL_S: Final = 0.5
# A try ends so long before the lease does.
MARGIN_S: Final = 2.0
ERROR_CHARS_MAX: Final = 200

logger = logging.getLogger(__name__)


class Waiting(msgspec.Struct, frozen=True):
    """A message that waits, with the position of its fact.

    Without a notice it is only counted: it is about a job of an unknown tenant.
    """

    seq: int
    position: int
    at_ns: int
    notice: Notice | None


class Delivery:
    """The task of one destination. `is_behind`: facts that it must get are not in its queue."""

    def __init__(self, notifier: "Notifier", destination: Destination) -> None:
        self.notifier = notifier
        self.destination = destination
        self.position = Position(notifier.store, destination)
        self.progress = Progress(seq=0)
        self.queue: deque[Waiting] = deque()
        self.is_behind = True
        self._woken = asyncio.Event()
        self._stored = self.progress

    def offer(self, waiting: Waiting) -> None:
        """Take a message from the feed; with a full queue it is read from the log later."""
        if self.is_behind or len(self.queue) >= QUEUE_MAX:
            self.is_behind = True
            return
        self.queue.append(waiting)
        self._woken.set()

    async def run(self) -> None:
        """Deliver for ever. Raises Fenced if another gateway has written the position."""
        self.progress = self._stored = await self.position.load(
            self.notifier.gateway.cluster.restored_seq
        )
        while True:
            if self.queue:
                await self._deliver(self.queue[0])
                self.queue.popleft()
            elif self.is_behind:
                await self._catch_up()
            else:
                await self._idle()

    async def _idle(self) -> None:
        """Wait for a message. Meanwhile everything up to the feed's head is done."""
        self._woken.clear()
        try:
            async with asyncio.timeout(IDLE_SAVE_S):
                await self._woken.wait()
        except TimeoutError:
            if not self.queue and not self.is_behind and self.notifier.head > self.progress.seq:
                await self._save(
                    msgspec.structs.replace(self.progress, seq=self.notifier.head, position=WHOLE)
                )

    async def _catch_up(self) -> None:
        """Read the log from the position on, until the queue is full or the feed is reached."""
        upto, after = self.notifier.head, self.progress
        first = after.seq if after.position == WHOLE else after.seq - 1
        entries = self.notifier.gateway.entries
        try:
            async with aclosing(entries.scan(first, upto)) as slices:
                async for piece in slices:
                    for entry in piece:
                        found = await self.notifier.chosen(self.destination, entry)
                        done = (after.seq, after.position)
                        self.queue += [each for each in found if (each.seq, each.position) > done]
                        first = entry.seq
                        if len(self.queue) >= QUEUE_MAX:
                            return
        except Unavailable as error:
            logger.warning("notifications of %s wait: %s", self.position.key, error)
            await asyncio.sleep(BACKOFF_FIRST_S)
            return
        if first >= self.notifier.head:
            self.is_behind = False
        if not self.queue and first > after.seq:
            self.progress = msgspec.structs.replace(after, seq=first, position=WHOLE)

    async def _deliver(self, waiting: Waiting) -> None:
        """Send one message until it is accepted or given up, or count one without a notice."""
        while True:
            await self._own_turn()
            if waiting.notice is None:
                text = "%s: a fact of commit %d is skipped: its job is in no archive"
                logger.warning(text, self.position.key, waiting.seq)
                await self._pass(waiting, skipped=1)
                return
            clock = self.notifier.gateway.clock
            try:
                await self.notifier.send(self.destination, waiting.notice)
            except (Refused, Unavailable, Corrupt) as error:
                now = clock.wall_ns()
                if now - waiting.at_ns > KEEP_S * 1_000_000_000:
                    await self._pass(waiting, skipped=1)
                    return
                await self._failed(str(error), now)
                continue
            await self._pass(waiting, sent=1, sent_ns=clock.wall_ns())
            return

    async def _own_turn(self) -> None:
        """Wait until this gateway holds the lease for the time of a whole try."""
        while not self.notifier.lease.holds(SEND_S + MARGIN_S):
            await asyncio.sleep(LEASE_POLL_S)

    async def _pass(
        self, waiting: Waiting, sent: int = 0, sent_ns: int = 0, skipped: int = 0
    ) -> None:
        now = self.progress
        await self._save(
            msgspec.structs.replace(
                now,
                seq=waiting.seq,
                position=waiting.position,
                sent=now.sent + sent,
                sent_ns=sent_ns or now.sent_ns,
                failures=0 if sent else now.failures,
                failing_ns=0 if sent else now.failing_ns,
                error="" if sent else now.error,
                skipped=now.skipped + skipped,
            )
        )

    async def _failed(self, error: str, now_ns: int) -> None:
        """Store the failure for people to see, and wait before the next try."""
        before = self.progress
        await self._save(
            msgspec.structs.replace(
                before,
                failures=before.failures + 1,
                failing_ns=before.failing_ns or now_ns,
                error=error[:ERROR_CHARS_MAX],
            )
        )
        await asyncio.sleep(backoff_s(self.progress.failures))

    async def _save(self, progress: Progress) -> None:
        await self.position.save(progress)
        self.progress = self._stored = progress


def backoff_s(failures: int) -> float:
    """Return the pause after so many failures in a row: doubling, bounded, half of it by chance."""
    whole = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 20))
    return whole * (0.5 + random.random() / 2)  # nosec B311


async def stored_of(vault: Vault, tenant: str, name: str) -> Sealed | None:
    """Return the vault's values for this name. Raises Unavailable, Refused, Corrupt."""
    value = await vault.get(tenant, vault_name(name))
    return msgspec.json.decode(value, type=Sealed) if value else None


async def sealed_of(vault: Vault, destination: Destination) -> Sealed:
    """Return the values that belong to a destination. Raises Unavailable, Refused, Corrupt."""
    stored = await stored_of(vault, destination.tenant, destination.name)
    found = agreed(stored, destination.address_id)
    if found is None:
        problem = "is missing" if stored is None else "is not the one that was set last"
        raise Refused(
            f"the address of {destination.name} {problem}: set it again with `muster notify add`"
        )
    return found
