"""Watches the health of one nats-server's store, and restarts the server when it lost the store.

A server whose disk was full switches JetStream off, and keeps it off when there is space again:
only a restart helps. Its monitoring port reports the state. Test: tests/unit/test_store_watch.py.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import aiohttp

EVERY_S: Final = 1.0
ANSWER_S: Final = 2.0
# Bad answers in a row, after a good one, that cannot be an election or a slow disk.
BAD_MAX: Final = 15


class StoreWatch:
    """The watch of one server.

    `free` returns the bytes that may still be written. `restart` ends the server; its parent
    process then starts it again.
    """

    def __init__(
        self,
        free: Callable[[], int],
        needed: int,
        say: Callable[[str], object],
        restart: Callable[[], object],
    ) -> None:
        self.free = free
        self.needed = needed
        self.say = say
        self.restart = restart
        self.bad = 0
        self.was_good = False

    def look(self, good: bool) -> None:
        """Take one answer of the server into account. A restart waits until the disk has space."""
        self.was_good = self.was_good or good
        self.bad = 0 if good or not self.was_good else self.bad + 1
        if self.bad >= BAD_MAX and self.free() >= self.needed:
            self.say(f"nats-server has had no JetStream for {self.bad} s: restarting it")
            self.bad, self.was_good = 0, False
            self.restart()

    async def run(self, url: str) -> None:
        """Ask `url`, the server's health route, until cancelled."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                self.look(await _is_healthy(session, url))
                await asyncio.sleep(EVERY_S)


async def _is_healthy(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url) as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
