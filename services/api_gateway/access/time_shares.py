"""Shares of a gateway's time: a tenant that has used much lately works in turns with the others.

A gateway has one thread. A tenant that sends as fast as it can makes hundreds of coroutines ready
at the same moment, and a request of another tenant would run behind all of them. So the time of
each step of a request, from one `await` to the next, is charged to its tenant, and so is the work
that a recorded change causes in other services (`owe`). A tenant that is over its credit goes on
only in its turn. A round gives turns worth ROUND_S, first to the tenant that has used least, and
then lets the event loop read what has come. A tenant within its credit never waits here, so a calm
tenant waits for one round and not for a queue.

While such a tenant was active within CALM_S, a pause follows each round, as long as what the round
was worth. So storms use at most half of the time, here and elsewhere. A tenant that is alone never
waits: no other one was active for ALONE_S. Tests: tests/unit/test_time_shares.py.
"""

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Generator, Iterable
from types import coroutine
from typing import Any, Final, TypeVar

# The credit of a tenant, how much of it comes back in a second, and the most that is remembered.
CREDIT_S: Final = 0.02
RETURNED: Final = 0.1
USED_MAX_S: Final = 0.2
# Time of the turns of one round; a step longer than this is a round by itself.
ROUND_S: Final = 0.001
ALONE_S: Final = 60.0
CALM_S: Final = 1.0
PAUSE_MAX_S: Final = 0.005
# Estimated processor time of all services for a recorded change, and for each byte of it.
CHANGE_S: Final = 0.003
CHANGE_BYTE_S: Final = 20e-9
# Passes of the event loop after a round, in which its steps run and new input is read.
PASSES: Final = 2
# Expected time of a tenant's step before one was measured, and the part of it that a new one moves.
STEP_S: Final = 0.0002
MOVED: Final = 0.125
# If more tenants than this are known, those with their whole credit are forgotten.
KEPT_MAX: Final = 1_000

T = TypeVar("T")


class Share:
    """The use of one tenant.

    `used_s` is the time beyond what has come back, at the time `at_s`. `step_s` is the expected
    time of its next step, `given_s` the worth of the turns of this round, and `owed_s` the time of
    work elsewhere that its next turns are worth in addition.
    """

    __slots__ = ("at_s", "given_s", "owed_s", "step_s", "used_s", "waiting")

    def __init__(self, at_s: float) -> None:
        self.used_s = self.given_s = self.owed_s = 0.0
        self.at_s = at_s
        self.step_s = STEP_S
        self.waiting: deque[asyncio.Future[None]] = deque()

    def charge(self, spent_s: float, now_s: float) -> None:
        """Add the time of a step."""
        self.use(spent_s, now_s)
        self.step_s += (spent_s - self.step_s) * MOVED

    def use(self, spent_s: float, now_s: float) -> None:
        """Add time that the tenant has used."""
        self.used_s = min(USED_MAX_S, self.left_over(now_s) + spent_s)
        self.at_s = now_s

    def left_over(self, now_s: float) -> float:
        """Return the used time that has not come back yet."""
        return max(0.0, self.used_s - (now_s - self.at_s) * RETURNED)

    def rank_s(self) -> float:
        """Return what orders tenants that wait: the one with the smallest rank goes first."""
        return self.used_s + self.at_s * RETURNED + self.given_s

    def take(self) -> float:
        """Return what the next turn is worth."""
        owed_s = min(self.owed_s, PAUSE_MAX_S)
        self.owed_s -= owed_s
        return self.step_s + owed_s


class TimeShares:
    """The shares of all tenants of one gateway.

    `ready` holds the tenants with waiting steps. `active` is the tenant that took a step last, and
    `other_at_s` when another one than that did. `calm_at_s` is when a tenant within its credit did.
    """

    def __init__(self) -> None:
        self.shares: dict[str, Share] = {}
        self.ready: list[Share] = []
        self.active: Share | None = None
        self.active_at_s = self.other_at_s = self.calm_at_s = -ALONE_S
        self._some = asyncio.Event()

    def share(self, tenant: str) -> Share:
        """Return the share of a tenant."""
        found = self.shares.get(tenant)
        if found is None:
            if len(self.shares) >= KEPT_MAX:
                self._forget()
            found = self.shares[tenant] = Share(time.perf_counter())
        return found

    def _forget(self) -> None:
        now_s = time.perf_counter()
        for name in [name for name, each in self.shares.items() if not each.left_over(now_s)]:
            if not self.shares[name].waiting:
                del self.shares[name]

    async def in_share(self, tenant: str, work: Coroutine[Any, Any, T], spent_s: float = 0.0) -> T:
        """Run the work; each of its steps counts, and waits for its turn if the tenant is over.

        `spent_s` was used for the work before.
        """
        share = self.share(tenant)
        share.use(spent_s, time.perf_counter())
        return await _steps(self, share, work)

    async def turn(self, tenant: str, spent_s: float) -> None:
        """Charge time of work that runs in a task of its own, and wait for a turn if need be."""
        share = self.share(tenant)
        share.charge(spent_s, time.perf_counter())
        if self.is_over(share):
            await self._turn(share)

    def owe_change(self, tenant: str, size: int) -> None:
        """Charge the time of all services for a change of so many bytes that is recorded for the
        tenant; operators' own changes are not charged.
        """
        if tenant:
            self.owe(tenant, CHANGE_S + size * CHANGE_BYTE_S)

    def owe(self, tenant: str, spent_s: float) -> None:
        """Charge time of other processes that the tenant's request causes."""
        share = self.share(tenant)
        share.use(spent_s, time.perf_counter())
        share.owed_s = min(USED_MAX_S, share.owed_s + spent_s)

    def is_over(self, share: Share) -> bool:
        """Return whether the tenant must wait for a turn before its next step."""
        now_s = time.perf_counter()
        if share is not self.active:
            self.active, self.other_at_s = share, self.active_at_s
        self.active_at_s = now_s
        if not share.waiting and share.left_over(now_s) <= CREDIT_S:
            self.calm_at_s, share.owed_s = now_s, 0.0
            return False
        return bool(share.waiting) or now_s - self.other_at_s < ALONE_S

    def _turn(self, share: Share) -> asyncio.Future[None]:
        """Return a future that is done when it is the tenant's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not share.waiting:
            self.ready.append(share)
        share.waiting.append(turn)
        self._some.set()
        return turn

    async def run(self) -> None:
        """Give turns, for ever."""
        while True:
            await self._some.wait()
            worth_s = self.give()
            for _ in range(PASSES):
                await asyncio.sleep(0)
            if time.perf_counter() - self.calm_at_s < CALM_S:
                await asyncio.sleep(min(PAUSE_MAX_S, worth_s))

    def give(self) -> float:
        """Give the turns of one round; return what they are worth."""
        worth_s = 0.0
        for share in self.ready:
            share.given_s = 0.0
        while worth_s < ROUND_S and self.ready:
            share = min(self.ready, key=Share.rank_s)
            turn = share.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                turn_s = share.take()
                worth_s += turn_s
                share.given_s += turn_s
            if not share.waiting:
                self.ready.remove(share)
        if not self.ready:
            self._some.clear()
        return worth_s


@coroutine
def _steps(
    shares: TimeShares, share: Share, work: Coroutine[Any, Any, T]
) -> Generator[Any, Any, T]:
    """Step through the work as the event loop would, and wait for a turn before a step if need
    be. An error that is thrown in meanwhile, such as a cancellation, goes to the work at once.
    """
    error: BaseException | None = None
    while True:
        if error is None and shares.is_over(share):
            error = yield from _passed_on(shares._turn(share))
        began_s = time.perf_counter()
        try:
            awaited = work.send(None) if error is None else work.throw(error)
        except StopIteration as done:
            found: T = done.value
            return found
        finally:
            now_s = time.perf_counter()
            share.charge(now_s - began_s, now_s)
        error = yield from _passed_on((awaited,))


def _passed_on(waits: Iterable[Any]) -> Generator[Any, Any, BaseException | None]:
    """Wait as the event loop wants it; return the error that is thrown in meanwhile."""
    try:
        yield from waits
    except BaseException as thrown:
        return thrown
    return None
