"""The signs of life that a leading process gives its followers, and the renewals of its term.

`give_signs` runs on a connection and an event loop of its own (`beside.py`), so that neither a long
decision nor a full queue of messages delays a sign. A process that is killed or stopped gives none
of them. One whose main loop hangs, or whose renewals fail for longer than an election takes, is
alive but of no use, and answers no more. Neither is one whose first connection is cut off from the
second one: nodes send their heartbeats to the first.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final, Protocol

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.process.clock import Clock
from libs.common.transport.bus import Bus

MS: Final = 1_000_000
# A main loop that made no progress for so many terms hangs.
HANGS_TERMS: Final = 2
# A first connection that the second one did not reach for so many terms is cut off.
CUT_OFF_TERMS: Final = 2
# Without a renewal for so many terms, another process may do better. An election of the log's
# servers takes 4 to 9 s, and does not end a term.
UNRENEWED_TERMS: Final = 5
RENEWALS_PER_TERM: Final = 3
BEAT_S: Final = 0.5

logger = logging.getLogger(__name__)


class Leadership(Protocol):
    """A quorum write that proves only that the process of this term still reaches the log."""

    async def renew(self, epoch: int) -> None:
        """Renew the term. Raises Unavailable if the write was not acknowledged, or a later term has
        written.
        """
        ...


class Leading:
    """One process's leadership of `service`. Its numbers are read by another thread.

    `beaten` is when the main loop was last seen, `renewed` when the last acknowledged renewal was
    sent, `reached` when the first connection was last asked with success, all by the boot clock.
    `renewals` counts them. `term_ms` is the length of a term.
    """

    def __init__(self, service: str, clock: Clock, term_ms: int) -> None:
        self.service = service
        self.clock = clock
        self.term_ms = term_ms
        self.epoch = 0
        self.beaten = 0
        self.renewed = 0
        self.reached = 0
        self.asks = False
        self.renewals = 0

    def begin(self, epoch: int, renewed: int) -> None:
        """Begin the term `epoch`. Its first write, which was sent at `renewed`, renews it too."""
        self.beaten = self.reached = self.clock.boot_ns()
        self.renewed, self.epoch = renewed, epoch

    def beat(self) -> None:
        """Note that the main loop makes progress."""
        self.beaten = self.clock.boot_ns()

    async def listen(self, bus: Bus) -> None:
        """Answer on the first connection what `ask_first` asks on the second one."""

        async def answer(subject: str, data: bytes) -> bytes:
            return b"1"

        await bus.subscribe(subjects.ask_leader(self.service, self.epoch), answer)

    async def keep_beating(self) -> None:
        """Beat for a service whose main loop has no other pace, until cancelled."""
        while True:
            self.beat()
            await asyncio.sleep(BEAT_S)

    def renewed_at(self, sent: int) -> None:
        """Note an acknowledged renewal that was sent at `sent`."""
        self.renewed = max(self.renewed, sent)
        self.renewals += 1

    def is_useful(self) -> bool:
        """Return whether followers should go on following this process."""
        now, term = self.clock.boot_ns(), self.term_ms * MS
        return (
            self.epoch > 0
            and now - self.beaten < HANGS_TERMS * term
            and now - self.renewed < UNRENEWED_TERMS * term
            and not (self.asks and now - self.reached >= CUT_OFF_TERMS * term)
        )


# Gives the signs of life of one leader until it is cancelled.
GiveSigns = Callable[[Leading], Coroutine[None, None, None]]


async def give_signs(leading: Leading, bus: Bus, leadership: Leadership | None = None) -> None:
    """Answer followers, and renew the term with `leadership`, until cancelled."""

    async def answer(subject: str, data: bytes) -> bytes | None:
        return b"%d" % leading.epoch if leading.is_useful() else None

    await bus.subscribe(subjects.ask_alive(leading.service), answer)
    while True:
        await _renew(leading, leadership)
        await asyncio.sleep(leading.term_ms / 1_000 / RENEWALS_PER_TERM)


async def ask_first(leading: Leading, bus: Bus) -> None:
    """Ask the first connection through the second one, `bus`, until cancelled.

    Both may be at different servers. Then heartbeats of nodes reach the leader only while the first
    one's server is not cut off from the others.
    """
    leading.asks, every_s = True, leading.term_ms / 1_000 / RENEWALS_PER_TERM
    while True:
        asked = leading.clock.boot_ns()
        try:
            await bus.request(subjects.ask_leader(leading.service, leading.epoch), b"", every_s)
        except Unavailable as error:
            logger.warning("the first connection is not reached through the second: %s", error)
        else:
            leading.reached = max(leading.reached, asked)
        await asyncio.sleep(every_s)


async def _renew(leading: Leading, leadership: Leadership | None) -> None:
    """Renew the term once. Without a leadership to renew, the service has no leases to grant."""
    sent = leading.clock.boot_ns()
    if leadership is not None:
        try:
            await leadership.renew(leading.epoch)
        except Unavailable as error:
            logger.warning("the term was not renewed: %s", error)
            return
    leading.renewed_at(sent)
