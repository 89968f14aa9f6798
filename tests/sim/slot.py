"""A place where a simulated process runs again and again, as under a service manager.

It owns the process's parts of the world: its ways to the log and the bus, and its clock. It also
classifies the end of the process. A kill and a known error belong to the weather. Any other end is
a bug that the next start would hide, so it is a violation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from libs.common.errors import Corrupt, MusterError, TooNew, Unavailable
from libs.common.process.cancellation import Stopped
from tests.sim.bus import CONTROL, SimBus
from tests.sim.clock import SimClock
from tests.sim.log import SimLog
from tests.sim.loop import Process
from tests.sim.versions import speak_later

if TYPE_CHECKING:
    from tests.sim.world import World

RESTART_S: Final = 0.3


class Slot:
    """A place where a process runs again and again, as a service manager would keep it."""

    def __init__(
        self, world: World, name: str, host: str, start: Callable[[Slot], Coroutine[Any, Any, None]]
    ) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.start = start
        self.process = Process(name)
        self.process.alive = False
        self._service: Any = None
        self.stop = asyncio.Event()
        self.held_until = 0.0
        self.starts = 0
        self.is_later_version = False
        self.log: SimLog | None = None
        self.clock = SimClock(world.loop, world.skew())

    async def keep(self) -> None:
        """Start the process, wait for its end, wait as long as the fault says, and repeat."""
        while True:
            while self.held_until > self.world.loop.now or not self.world.host_up(self.host):
                await asyncio.sleep(max(0.05, min(0.5, self.held_until - self.world.loop.now)))
            self.starts += 1
            self.process, self.service, self.stop = (
                Process(f"{self.name}#{self.starts}"),
                None,
                asyncio.Event(),
            )
            task = self.process.spawn(self.start(self))
            await asyncio.wait([task])
            self._ended(task)
            self.process.kill()
            self.held_until = max(self.held_until, self.world.loop.now + RESTART_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or not self.process.alive:
            return
        error = cause(task.exception())
        if self.stop.is_set() and (error is None or isinstance(error, Stopped)):
            return
        if isinstance(error, MusterError) and not isinstance(error, Corrupt | TooNew):
            self.world.weather.tell("stood_down", f"{self.name}: {error}")
        else:
            self.world.violate("no_service_dies_of_a_bug", f"{self.name}: {error!r}", error)

    def strike(self, length_s: float) -> None:
        """Kill the process with -9 and keep it down for a while."""
        self.held_until = max(self.held_until, self.world.loop.now + length_s)
        self.process.kill()

    @property
    def place(self) -> str:
        """The side of a partition that the process is on (`bus.place_of`)."""
        return self.name if self.host == CONTROL else self.host

    @property
    def service(self) -> Any:
        """The service of the present process; None before it is made."""
        return self._service

    @service.setter
    def service(self, service: Any) -> None:
        self._service = service
        if service is not None and self.is_later_version:
            speak_later(service.writer, with_kind=self.name == "gateway")

    def open_log(self) -> SimLog:
        self.log = SimLog(self.world.stream, self.process, self.world.weather, self.world.acked)
        self.log.stalled_until = self.world.stalled_until
        self.log.apart_until = self.world.network.minority.get(self.place, 0.0)
        return self.log

    def open_bus(self) -> SimBus:
        return SimBus(self.world.network, self.process, self.host)


def cause(error: BaseException | None) -> BaseException | None:
    """Return the first error of a group, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class SimLeadership:
    """The quorum write that renews a term.

    It travels to the log and back, and fails while the log stalls. A term takes the key from lower
    terms, which can then no longer renew (`libs.common.transport.kv_nats.KvLeadership`).
    """

    def __init__(self, slot: Slot) -> None:
        self.slot = slot

    async def renew(self, epoch: int) -> None:
        world, slot = self.slot.world, self.slot
        apart_until = slot.log.apart_until if slot.log is not None else 0.0
        stalled = max(world.stalled_until, slot.process.silent_until, apart_until) > world.loop.now
        await asyncio.sleep(0.001)
        self.slot.process.check()
        if stalled or self.slot.world.weather.hit("log_silent", "leadership"):
            raise Unavailable("no quorum")
        if self.slot.world.leading_epoch > epoch:
            raise Unavailable("a later term has the key")
        self.slot.world.leading_epoch = epoch
