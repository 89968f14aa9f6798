"""The claims on locks to check again: those that a fact touched, and those whose time has passed.

Pure, and derived: a part of `State`. Times are of this machine's boot clock and count from when
this process first saw the claim in its present form. So a jump of a wall clock frees nothing, and
after a take-over every holder has its whole time to live again.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from libs.common.life import lock_life
from libs.common.state.locks import (
    ClaimKey,
    LockClaim,
    Locks,
    claim_of,
    first_waiting,
    lock_named,
)

MS: Final = 1_000_000
# A holder is freed so much later than it may count on the lock, because two machines' clocks run at
# slightly different speeds: a second and a thousandth of the time to live.
MARGIN_NS: Final = 1_000_000_000
DRIFT_PART: Final = 1_000
# Above so many timers, the ones of claims that ended are removed.
TIMERS_SWEPT: Final = 4_096


class Form(NamedTuple):
    """The present form of a claim: a new grant or a renewal gives it a new time."""

    token: int
    renewed: int


class LockTurns:
    """The claims to check (`due`), and the timers of the others.

    `timed` has the form of each claim for which a timer runs, `passed` that of each claim whose
    timer has ended.
    """

    def __init__(self) -> None:
        self.due: dict[ClaimKey, None] = {}
        self.timed: dict[ClaimKey, Form] = {}
        self.passed: dict[ClaimKey, Form] = {}
        self._timers: list[tuple[int, ClaimKey, Form]] = []

    def note(self, keys: Iterable[ClaimKey], locks: Locks) -> None:
        """Check these claims. If one has ended, check the first that waits for its lock."""
        for key in keys:
            if claim_of(locks, key) is not None:
                self.due[key] = None
                continue
            self.due.pop(key, None)
            self.timed.pop(key, None)
            self.passed.pop(key, None)
            lock = lock_named(locks, key.tenant, key.lock)
            following = first_waiting(lock) if lock is not None else None
            if following is not None:
                self.due[key._replace(holder=following.holder)] = None

    def wake(self, now_ns: int) -> None:
        """Check the claims whose timers have ended."""
        while self._timers and self._timers[0][0] <= now_ns:
            _, key, form = heappop(self._timers)
            if self.timed.get(key) == form:
                self.passed[key] = form
                self.due[key] = None

    def is_over(self, key: ClaimKey, claim: LockClaim) -> bool:
        """Return whether the time of the claim's present form has passed."""
        return self.passed.get(key) == form_of(claim)

    def rest(self, key: ClaimKey, claim: LockClaim, now_ns: int) -> None:
        """Skip the claim until a fact touches it or its time has passed."""
        self.due.pop(key, None)
        form = form_of(claim)
        if self.timed.get(key) == form:
            return
        self.timed[key] = form
        heappush(self._timers, (now_ns + allowed_ns(claim), key, form))
        if len(self._timers) > TIMERS_SWEPT + 2 * len(self.timed):
            self._timers = [each for each in self._timers if self.timed.get(each[1]) == each[2]]
            heapify(self._timers)


def form_of(claim: LockClaim) -> Form:
    return Form(claim.token, claim.renewed)


def allowed_ns(claim: LockClaim) -> int:
    """Return how long a claim may keep its present form."""
    if claim.state == lock_life.WAITING:
        return claim.wait_ms * MS
    ttl_ns = claim.ttl_ms * MS
    return ttl_ns + MARGIN_NS + ttl_ns // DRIFT_PART
