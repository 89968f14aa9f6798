"""Clients that use locks in a run: the rule of `POST /v1/locks/{name}/acquire` and the one of
`muster lock`, over the simulated gateway.

Requests and answers are lost or late. A user repeats a request with the same name. Some users never
release, and then only the time to live frees the lock.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from libs.client.lock_term import LockTerm
from libs.common import facts as f
from libs.common.life import lock_life
from libs.common.model import TenantId
from libs.common.state.locks import ClaimKey, LockClaim, claim_of, end_of
from tests.sim import faults
from tests.sim.clock import SimClock

if TYPE_CHECKING:
    from tests.sim.world import World

LOCKS: Final = ("data", "gate")
TENANT: Final = TenantId("default")
TTLS_S: Final = (2, 4)
WAIT_S: Final = 60
# Bounds of one request: an answer that does not come is a lost one.
ANSWER_S: Final = 2.0
LOOK_S: Final = 0.1
LATE_MAX_S: Final = 0.6
# Parts of the answers that are lost, of the users that never release, and of those that are cut off
# from every gateway while they work.
LOST_PART: Final = 0.15
CRASH_PART: Final = 0.1
CUT_PART: Final = 0.2
CUT_S: Final = 12.0
WORK_MAX_S: Final = 6.0
# A boot clock runs up to so much too fast or too slow.
DRIFT_MAX: Final = 0.0004


# Times by which the schedulers' clocks are ahead, one after the other.
STEPS_S: Final = ((5.0, 20.0), (10.0, 60.0), (15.0, 600.0), (20.0, 3_600.0))
USERS: Final = 8


def with_locks(seed: int) -> faults.Plan:
    """Return a plan with users of locks, and schedulers whose wall clocks jump ahead."""
    given = faults.plan(seed)
    jumps = [
        faults.Blow(at_s, faults.CLOCK_STEP, f"scheduler-{name}", ahead_s)
        for at_s, ahead_s in STEPS_S
        for name in "ab"
    ]
    blows = tuple(sorted((*given.blows, *jumps)))
    return replace(given, blows=blows, lock_users=USERS)


class Span(NamedTuple):
    """The time in which a user worked under a lock."""

    lock: str
    holder: str
    token: int
    from_s: float
    to_s: float


class LockUsers:
    """All users of one run."""

    def __init__(self, world: World, count: int) -> None:
        self.world = world
        self.spans: list[Span] = []
        self.users = [LockUser(self, number) for number in range(count)]
        self.tasks = [world.loop.create_task(user.run()) for user in self.users]

    @property
    def at_rest(self) -> bool:
        """Return whether every user is done, and no lock is held or waited for."""
        over = all(task.done() for task in self.tasks)
        return over and not any(own.locks for own in self.world.reference.locks.values())


class LockUser:
    """One user, with a machine of its own."""

    def __init__(self, users: LockUsers, number: int) -> None:
        self.users = users
        self.world = users.world
        self.dice = random.Random(f"lock user {self.world.plan.seed} {number}")
        self.number = number
        self.cut_until_s = 0.0
        rate = 1.0 + self.dice.uniform(-DRIFT_MAX, DRIFT_MAX)
        self.clock = SimClock(self.world.loop, self.world.skew(), -self.dice.random(), rate)

    async def run(self) -> None:
        """Use locks until the storm is over."""
        turn = 0
        while self.world.loop.now < self.world.plan.storm_s:
            await asyncio.sleep(self.dice.uniform(0.0, 2.0))
            turn += 1
            key = ClaimKey(TENANT, self.dice.choice(LOCKS), f"u{self.number}-{turn}")
            await self._use(key, self.dice.choice(TTLS_S))

    async def _use(self, key: ClaimKey, ttl_s: int) -> None:
        term = await self._acquire(key, ttl_s)
        if term is None:
            return
        claim = self._claim(key)
        if claim is not None and self.clock.boot_ns() < term.kill_ns:
            await self._work(key, claim.token, term)
        if self.dice.random() >= CRASH_PART:
            await self._release(key)

    async def _acquire(self, key: ClaimKey, ttl_s: int) -> LockTerm | None:
        """Return the time for which the lock is held; None if the claim ended."""
        wish = f.LockRequested(
            **key._asdict(), ttl_ms=ttl_s * 1_000, wait_ms=WAIT_S * 1_000, user="u"
        )
        while not end_of(self.world.reference.locks, key):
            sent_ns = self.clock.boot_ns()
            seq = await self._record(wish) if self._claim(key) is None else 0
            if seq is None:
                continue
            claim = await self._held(key)
            if claim is None or claim.state != lock_life.HELD:
                continue
            if claim.seq != seq and not await self._renewed(key):
                continue
            if await self._answered():
                return LockTerm(ttl_s * 1_000_000_000, sent_ns)
        return None

    async def _held(self, key: ClaimKey) -> LockClaim | None:
        until_s = self.world.loop.now + ANSWER_S
        while self.world.loop.now < until_s:
            claim = self._claim(key)
            if claim is None or claim.state == lock_life.HELD:
                return claim
            await asyncio.sleep(LOOK_S)
        return self._claim(key)

    async def _renewed(self, key: ClaimKey) -> bool:
        seq = await self._record(f.LockRenewRequested(**key._asdict()))
        until_s = self.world.loop.now + ANSWER_S
        while seq is not None and self.world.loop.now < until_s:
            claim = self._claim(key)
            if claim is None:
                return False
            if claim.renewed >= seq:
                return True
            await asyncio.sleep(LOOK_S)
        return False

    async def _work(self, key: ClaimKey, token: int, term: LockTerm) -> None:
        """Work until it is done or killed, and renew meanwhile."""
        begun_s = self.world.loop.now
        until_s = begun_s + self.dice.uniform(0.1, WORK_MAX_S)
        if self.dice.random() < CUT_PART:
            self.cut_until_s = begun_s + CUT_S
        renewal: asyncio.Task[None] | None = None
        while self.world.loop.now < until_s and self.clock.boot_ns() < term.kill_ns:
            if self.clock.boot_ns() >= term.renew_ns and (renewal is None or renewal.done()):
                renewal = self.world.loop.create_task(self._prolong(key, term))
            await asyncio.sleep(LOOK_S)
        self.users.spans.append(Span(key.lock, key.holder, token, begun_s, self.world.loop.now))
        if renewal is not None:
            renewal.cancel()

    async def _prolong(self, key: ClaimKey, term: LockTerm) -> None:
        sent_ns = self.clock.boot_ns()
        if await self._renewed(key) and await self._answered():
            term.renewed(sent_ns)

    async def _release(self, key: ClaimKey) -> None:
        while self._claim(key) is not None:
            await self._record(f.LockReleaseRequested(**key._asdict(), user="u"))
            await asyncio.sleep(LOOK_S)

    async def _record(self, fact: f.AnyFact) -> int | None:
        """Record a fact through the gateway; return its sequence, None if there is no answer."""
        await asyncio.sleep(LOOK_S)
        gateway = self.world.slots["gateway"]
        if self.world.loop.now < self.cut_until_s:
            return None
        if not gateway.process.alive or gateway.service is None:
            return None
        future = gateway.service.writer.put((fact,))
        done, _ = await asyncio.wait((future,), timeout=ANSWER_S)
        if not done or future.cancelled() or future.exception() is not None:
            return None
        seq: int = future.result()
        while self.world.reference.seq < seq:
            await asyncio.sleep(LOOK_S)
        return seq

    async def _answered(self) -> bool:
        """Wait for an answer that is under way; return whether it arrives."""
        await asyncio.sleep(self.dice.uniform(0.0, LATE_MAX_S))
        return self.dice.random() >= LOST_PART

    def _claim(self, key: ClaimKey) -> LockClaim | None:
        return claim_of(self.world.reference.locks, key)
