"""Locks of the tenant: acquire, renew, release, list.

Tests: tests/integration/test_client_locks.py.
"""

import uuid
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Final, Self

from libs.client import calls
from libs.client.asynchronous.connection import AsyncConnection
from libs.client.asynchronous.pages import pages
from libs.client.errors import Conflict, NotFound
from libs.client.lock_term import LockTerm
from libs.client.models.locks import ClaimShown, LockShown
from libs.common.life import lock_life
from libs.common.process.clock import SystemClock

NS_PER_S: Final = 1_000_000_000
# Repetitions of a request whose answer left less than two thirds of the time to live.
LATE_MAX: Final = 3

clock = SystemClock()


class AsyncLock:
    """A lock that is held. Use it in a `with` block, or release it.

    `token` is larger than that of every earlier holder. Renew the lock before `left_s` is 0, and
    stop the work that needs it when it cannot be renewed.
    """

    def __init__(self, connection: AsyncConnection, shown: ClaimShown, sent_ns: int) -> None:
        self._connection = connection
        self._term = LockTerm(shown.ttl_s * NS_PER_S, sent_ns)
        self.name = shown.lock
        self.holder = shown.holder
        self.token = shown.token

    def __repr__(self) -> str:
        return f"<lock {self.name} with token {self.token}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.release()
        except (Conflict, NotFound):
            pass  # it was lost, or released in the block

    @property
    def left_s(self) -> float:
        """Return the seconds for which this holder may count on the lock; 0 if it must stop."""
        return max(0.0, (self._term.kill_ns - clock.boot_ns()) / NS_PER_S)

    @property
    def is_late(self) -> bool:
        """Return whether the lock should have been renewed by now: a third of its time is over."""
        return clock.boot_ns() >= self._term.renew_ns

    async def renew(self) -> None:
        """Count the whole time to live again. Raises Conflict if the lock was lost."""
        sent_ns = clock.boot_ns()
        await self._connection.ask(_call(self.name, "renew", self.holder), ClaimShown)
        self._term.renewed(sent_ns)

    async def release(self) -> None:
        """Give the lock back. Raises Conflict if it was lost."""
        await self._connection.ask(_call(self.name, "release", self.holder), ClaimShown)


class AsyncLocks:
    """The locks of the tenant. At most one client holds a lock of a name."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def acquire(
        self,
        name: str,
        *,
        ttl: int | str = "30s",
        wait: int | str = 0,
        holder: str | None = None,
    ) -> AsyncLock:
        """Acquire a lock, and wait for it for at most `wait`.

        It is freed `ttl` after the last renewal. A call with the `holder` of an earlier one
        continues that. A lock that was granted after a long wait is renewed before it is returned.
        Raises Conflict if the lock was not free in time.
        """
        body = {"holder": holder or uuid.uuid4().hex, "ttl": ttl, "wait": wait}
        path = calls.path_of("locks", name, "acquire")
        late = 0
        while True:
            sent_ns = clock.boot_ns()
            # The holder makes a repeated request continue the claim of the first.
            call = calls.changing("POST", path, body, repeatable=True)
            shown = await self._connection.ask(call, ClaimShown)
            if shown.state == lock_life.HELD:
                lock = AsyncLock(self._connection, shown, sent_ns)
                if not lock.is_late or late == LATE_MAX:
                    return lock
                late += 1  # the repeated request renews it

    def list(self) -> AsyncIterator[LockShown]:
        """Return the locks that are held or waited for."""
        return pages(self._connection, calls.path_of("locks"), "locks", LockShown)

    async def get(self, name: str) -> LockShown:
        """Return a lock with its holder and its queue. Raises NotFound if it is free."""
        call = calls.reading(calls.path_of("locks", name))
        return await self._connection.ask(call, LockShown)


def _call(name: str, what: str, holder: str) -> calls.Call:
    return calls.changing("POST", calls.path_of("locks", name, what), {"holder": holder})
