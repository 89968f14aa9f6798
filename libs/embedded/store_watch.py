"""Watches the store of one nats-server, and restarts the server when it no longer stores anything.

After one failed write, for example on a disk that filled up at once, a server switches JetStream
off, or accepts no more messages for a stream. It stays so when the disk has space again: only a
restart helps. Its monitoring port tells the reason. A server that waits for other servers is left
alone.
Tests: tests/unit/test_store_watch.py, tests/integration/test_full_disk.py.
"""

import asyncio
import time
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    import aiohttp

# The health route with all reasons.
ROUTE: Final = "/healthz?details=true"
EVERY_S: Final = 1.0
ANSWER_S: Final = 2.0
# Answers in a row that say that nothing is stored.
LOST_MAX: Final = 3
# Time without an answer, after an answer, that cannot be a slow disk. A look at a frozen server
# takes ANSWER_S, so looks are not counted.
SILENT_S: Final = 15.0
# In the reasons of a server: words of a failure that only a restart repairs.
LOST_WORDS: Final = ("write error", "not enabled")


class Health(Enum):
    """One answer of a server. WAITS: it is not healthy, but may become so by itself."""

    GOOD = "good"
    WAITS = "waits"
    LOST = "lost"
    SILENT = "silent"


class _Reason(msgspec.Struct):
    error: str = ""


class _Answer(msgspec.Struct):
    status: str = ""
    errors: list[_Reason] = []


def health(status: int, body: bytes) -> Health:
    """Return the health that an answer of ROUTE tells."""
    if status == 200:
        return Health.GOOD
    is_lost = any(word in reason.lower() for reason in reasons(body) for word in LOST_WORDS)
    return Health.LOST if is_lost else Health.WAITS


def reasons(body: bytes) -> list[str]:
    """Return the reasons in an answer of ROUTE; none if it cannot be read."""
    try:
        return [reason.error for reason in msgspec.json.decode(body, type=_Answer).errors]
    except msgspec.DecodeError:
        return []


class StoreWatch:
    """The watch of one server.

    `restart` ends the server; its parent process then starts it again, when its disk has space.
    `now_s` is a clock that is never set.
    """

    def __init__(
        self,
        say: Callable[[str], object],
        restart: Callable[[], object],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.now_s = now_s
        self.say = say
        self.restart = restart
        self.lost = 0
        self.answered_s = now_s()
        self.has_answered = False

    def look(self, found: Health) -> None:
        """Take one answer of the server into account."""
        self.has_answered = self.has_answered or found in (Health.GOOD, Health.WAITS)
        self.lost = self.lost + 1 if found is Health.LOST else 0
        now_s = self.now_s()
        if found is not Health.SILENT:
            self.answered_s = now_s
        silent_s = now_s - self.answered_s
        if self.lost >= LOST_MAX:
            self._restart("stores nothing after a failed write")
        elif self.has_answered and silent_s >= SILENT_S:
            self._restart(f"has not answered for {silent_s:.0f} s")

    def _restart(self, why: str) -> None:
        self.say(f"nats-server {why}: restarting it")
        self.lost = 0
        self.has_answered = False
        self.restart()

    async def run(self, url: str) -> None:
        """Ask `url`, the address of the server's monitoring port, until cancelled."""
        import aiohttp  # at the first use: the launcher of `muster up` does without

        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                self.look(await _asked(session, url + ROUTE))
                await asyncio.sleep(EVERY_S)


async def _asked(session: "aiohttp.ClientSession", url: str) -> Health:
    import aiohttp

    try:
        async with session.get(url) as answer:
            return health(answer.status, await answer.read())
    except (aiohttp.ClientError, TimeoutError, OSError):
        return Health.SILENT
