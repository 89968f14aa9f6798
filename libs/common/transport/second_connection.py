"""A second connection of one process, to another server, for requests that must not be late.

A server may be frozen, or cut off from the other servers while it still answers its own clients'
pings. A node whose heartbeats go through such a server would lose its lease and its jobs. So a
heartbeat that is not answered soon is repeated through the second connection, and a process
whose requests only the second connection answers changes the server of the first one.
Tests: tests/attack/test_frozen_server.py, tests/unit/test_second_connection.py.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from nats.aio.client import Client

from libs.common.errors import Unavailable
from libs.common.process.cancellation import end_all, heed
from libs.common.transport.bus import CONCURRENT_MAX, Bus, Handler
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import server_of

# The second connection repeats a request after this part of its time.
REPEAT_PART: Final = 0.5
# So many requests in a row that only the second connection answered: the first changes servers.
MISSED_MAX: Final = 2
# After a repetition that was not needed or not answered, only each such request is repeated: a
# scheduler that is slow or silent gets a third more requests, not twice as many.
REPEAT_EVERY: Final = 3
LOOK_S: Final = 1.0

logger = logging.getLogger(__name__)


class RepeatingBus:
    """A bus whose requests are repeated through a second one; see `bus.Bus`.

    `second` returns the second bus; None while there is none. `leave` makes the first bus change
    servers. Requests must be idempotent, because both may be carried out.
    """

    def __init__(
        self, first: Bus, second: Callable[[], Bus | None], leave: Callable[[], Awaitable[None]]
    ) -> None:
        self.first = first
        self.second = second
        self.leave = leave
        self.missed = 0
        self.spared = 0

    async def publish(self, subject: str, data: bytes) -> None:
        await self.first.publish(subject, data)

    async def subscribe(
        self,
        subject: str,
        handler: Handler,
        concurrent: bool = False,
        queue: str = "",
        places: int = CONCURRENT_MAX,
    ) -> None:
        await self.first.subscribe(
            subject, handler, concurrent=concurrent, queue=queue, places=places
        )

    async def request(self, subject: str, data: bytes, timeout_s: float) -> bytes:
        first = asyncio.create_task(self.first.request(subject, data, timeout_s))
        tasks = [first]
        try:
            await asyncio.wait(tasks, timeout=timeout_s * REPEAT_PART)
            # A first connection that fails at once, for want of a listener, is not slow.
            is_slow = not first.done()
            spares = _answered(first) or (is_slow and self._spares())
            second = None if spares else self.second()
            if second is not None:
                left_s = timeout_s * (1 - REPEAT_PART)
                tasks.append(asyncio.create_task(second.request(subject, data, left_s)))
            await self._first_answer(tasks)
            await self._learn(tasks)
            return await next(filter(_answered, tasks), first)
        finally:
            await end_all(tasks)

    def _spares(self) -> bool:
        """Return whether this request is not repeated, to spare a scheduler that is slow."""
        self.spared -= self.spared > 0
        return self.spared > 0

    async def _learn(self, tasks: list[asyncio.Task[bytes]]) -> None:
        """Note which connection answered, and change servers after MISSED_MAX misses."""
        if _answered(tasks[0]):
            self.missed = 0
        if len(tasks) == 1:
            return
        if _answered(tasks[0]) or not _answered(tasks[1]):
            self.spared = REPEAT_EVERY
            return
        self.missed += 1
        if self.missed >= MISSED_MAX:
            self.missed = 0
            logger.warning("only the second connection is answered: the first one changes servers")
            await self.leave()

    async def _first_answer(self, tasks: list[asyncio.Task[bytes]]) -> None:
        waiting = [task for task in tasks if not task.done()]
        while waiting and not any(map(_answered, tasks)):
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            waiting = [task for task in tasks if not task.done()]


def _answered(task: asyncio.Task[bytes]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


class SecondConnection:
    """The second connection of the process whose first one is `first`; `connect` makes it."""

    def __init__(self, first: Client, connect: Callable[[], Awaitable[Client]]) -> None:
        self.first = first
        self.connect = connect
        self.client: Client | None = None

    def bus(self) -> Bus | None:
        """Return the bus over this connection; None while it is not connected."""
        if self.client is None or not self.client.is_connected:
            return None
        return NatsBus(self.client)

    async def keep(self) -> None:
        """Keep the connection at another server than the first one, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Connect unless connected, and change servers if both connections use the same one."""
        if self.client is None:
            try:
                self.client = await self.connect()
            except Unavailable as error:
                heed()
                logger.info("there is no second connection yet: %s", error)
                return
        if server_of(self.client) == server_of(self.first) != "":
            await self.client.force_reconnect()

    async def close(self) -> None:
        if self.client is not None:
            await self.client.close()


@asynccontextmanager
async def repeating_bus(
    first: Client, connect: Callable[[], Awaitable[Client]], servers: int
) -> AsyncIterator[Bus]:
    """Provide a bus whose requests a second connection repeats; with one server the first alone."""
    if servers < 2:
        yield NatsBus(first)
        return
    second = SecondConnection(first, connect)
    keeping = asyncio.create_task(second.keep())
    try:
        yield RepeatingBus(NatsBus(first), second.bus, first.force_reconnect)
    finally:
        await end_all((keeping,))
        await second.close()
