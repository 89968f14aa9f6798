"""The wait of a follower for its turn to lead, and the hand-over of a leader that stops.

A follower asks for a sign of life every ASK_EVERY_S, and takes over as soon as `watch.py` says that
the leader is gone. A leader that stops as planned asks the followers to take over at once, and one
that accepts does not wait for silence. Tests: tests/integration/test_take_over.py, tests/sim.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from libs.common import subjects
from libs.common.errors import Fenced, NoListener, Unavailable
from libs.common.leadership.watch import MS, SILENCE_MIN_MS, LeaderWatch
from libs.common.process.clock import Clock
from libs.common.process.pulse import NO_PULSE, Pulse
from libs.common.transport.bus import Bus

ASK_EVERY_S: Final = 0.1
# A request that failed sooner than this part of its time found no way to the bus.
AT_ONCE: Final = 0.5
# An answer to the question whether a follower takes over.
ACCEPT_S: Final = 0.3
# Time for that follower's term to reach this process.
TAKEN_OVER_S: Final = 1.5

logger = logging.getLogger(__name__)


class Candidate:
    """One process that may lead `service`.

    `epoch` is the newest term that it knows, from the log or from an answer. Answers of older terms
    do not count. `began_at_ns` is the time of the newest one, by its writer's wall clock or, for
    audit, by that of a nats-server.
    """

    def __init__(
        self,
        service: str,
        bus: Bus,
        clock: Clock,
        term_ms: int,
        pulse: Pulse = NO_PULSE,
    ) -> None:
        self.service = service
        self.bus = bus
        self.clock = clock
        self.watch = LeaderWatch(term_ms)
        self.pulse = pulse
        self.epoch = 0
        self.followed = 0
        self.began_at_ns = 0
        self.leads = False
        self.waits = False
        self.offered = asyncio.Event()
        self._asking: dict[asyncio.Task[None], None] = {}

    async def _on_take_over(self, subject: str, data: bytes) -> bytes | None:
        """Accept if the message names the term that this process follows; another one is late."""
        if not self.waits or data != b"%d" % self.epoch:
            return None
        self.offered.set()
        return b"1"

    def read(self, epoch: int, at_ns: int, live: bool) -> None:
        """Note a term that the log has. One that has just begun (`live`) gets time to answer."""
        self.epoch, self.began_at_ns = epoch, at_ns
        if live and not self.leads:
            self._wait_for_other()

    def _wait_for_other(self) -> None:
        self.offered.clear()
        self.watch.began(self.clock.boot_ns())

    async def lead(self, begin: Callable[[], Awaitable[int]]) -> int:
        """Wait for the turn, begin a term with `begin`, and return its epoch.

        Call it when this process follows the log. If the log refuses the term because another
        process began one first, wait again.
        """
        await self.bus.subscribe(subjects.take_over(self.service), self._on_take_over)
        logger.info("this %s follows the log until it is its turn to lead", self.service)
        if self.clock.wall_ns() - self.began_at_ns < self.watch.term_ms * MS:
            self._wait_for_other()
        while True:
            await self._turn()
            self.followed = self.epoch
            try:
                epoch = await begin()
            except Fenced as error:
                logger.info("another %s began a term first: %s", self.service, error)
                self._wait_for_other()
                continue
            self.leads, self.epoch = True, max(self.epoch, epoch)
            return epoch

    async def _turn(self) -> None:
        """Return when no process leads, or the leader hands over."""
        self.watch.begin(self.clock.boot_ns())
        self.waits = True
        try:
            while not (self.offered.is_set() or self.watch.is_gone(self.clock.boot_ns())):
                self.pulse.beat()
                self._ask_beside()
                await self._wait()
        finally:
            self.waits = False
            for task in self._asking:
                task.cancel()

    async def _wait(self) -> None:
        """Wait until the next request is due, or until the leader has been silent for too long."""
        silent_s = self.watch.silent_for_ms(self.clock.boot_ns()) / 1_000
        try:
            async with asyncio.timeout(min(ASK_EVERY_S, silent_s)):
                await self.offered.wait()
        except TimeoutError:
            return

    def _ask_beside(self) -> None:
        """Ask without waiting for earlier requests: a late answer counts too. Each ends within a
        term, which bounds their number.
        """
        task = asyncio.create_task(self._ask(self.watch.term_ms / 1_000))
        self._asking[task] = None
        task.add_done_callback(lambda done: self._asking.pop(done, None))

    async def _ask(self, within_s: float) -> None:
        asked = self.clock.boot_ns()
        try:
            answer = await self.bus.request(subjects.ask_alive(self.service), b"", within_s)
        except NoListener:
            self.watch.absent()
        except Unavailable:
            now = self.clock.boot_ns()
            if now - asked < within_s * AT_ONCE * 1e9:
                self.watch.lost_bus(now)
        else:
            if answer.isdigit() and int(answer) >= self.epoch:
                self.epoch = int(answer)
                self.watch.answered(asked, self.clock.boot_ns())

    async def confirm(self, slow: bool) -> None:
        """Check once more that it is the turn of this process, which has now read all terms.

        If its way to the log was slow, it may have been cut off itself, and asks again. Raises
        Fenced if another process has begun a term meanwhile, or the leader answers after all.
        """
        if self.epoch != self.followed:
            raise Fenced(f"a {self.service} began term {self.epoch} meanwhile: this one follows it")
        if not slow or self.offered.is_set():
            return
        try:
            answer = await self.bus.request(
                subjects.ask_alive(self.service), b"", SILENCE_MIN_MS / 1_000
            )
        except Unavailable:
            return
        if answer.isdigit() and int(answer) >= self.epoch:
            raise Fenced(f"the {self.service} that leads answers again: this one follows it")


async def hand_over(service: str, bus: Bus, epoch: int) -> None:
    """Ask the followers of the term `epoch` to take over, and wait for one's term.

    The reader of the log raises Fenced when it comes. Returns if no follower accepts, or none has
    begun a term in time.
    """
    try:
        await bus.request(subjects.take_over(service), b"%d" % epoch, ACCEPT_S)
    except Unavailable:
        return
    await asyncio.sleep(TAKEN_OVER_S)
    logger.warning("a %s accepted to take over, but began no term", service)
