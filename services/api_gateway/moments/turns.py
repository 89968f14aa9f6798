"""Turns of folds to past commits, and of searches: few at a time, one per tenant, in rotation.

A fold needs seconds of the loop's time on a long log. It works in slices of SLICE_S, the slices of
all folds follow each other, and after each one the loop is free for as long as the slice took. So
all folds together use at most half of the loop's time. Tests: tests/unit/test_fold_turns.py.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, TypeVar

from services.api_gateway.problems import Problem

SLICE_S: Final = 0.001
RETRY_AFTER_S: Final = 5

T = TypeVar("T")


class Bounds(NamedTuple):
    """Bounds of one kind of work, which `name` names in the plural.

    `running`: of different tenants at once. `per_tenant`: of one tenant that run or wait.
    `waiting`: of all tenants.
    """

    name: str
    running: int
    per_tenant: int
    waiting: int


FOLDS: Final = Bounds("past moments", running=2, per_tenant=4, waiting=64)
SEARCHES: Final = Bounds("times in the log", running=4, per_tenant=16, waiting=256)


class Turns:
    """The turns of one kind of work at one gateway."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.running: set[str] = set()
        self.waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._slice = asyncio.Lock()

    @asynccontextmanager
    async def take(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn of this tenant. Raises Problem 429 or 503 if too many wait."""
        queue = self.waiting.setdefault(tenant, deque())
        bounds = self.bounds
        if len(queue) + (tenant in self.running) >= bounds.per_tenant:
            text = (
                f"tenant {tenant} waits for {bounds.per_tenant} {bounds.name}, the maximum: wait "
                "until one of them is ready"
            )
            raise Problem(429, text, retry_after_s=RETRY_AFTER_S)
        if sum(map(len, self.waiting.values())) >= bounds.waiting:
            self._forget(tenant)
            text = f"{bounds.waiting} {bounds.name} are waited for at this gateway, the maximum"
            raise Problem(503, f"{text}: try again later", retry_after_s=RETRY_AFTER_S)
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(place)
        self._next()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.running.discard(tenant)
                self._next()
            raise
        try:
            yield
        finally:
            self.running.discard(tenant)
            self._next()

    def _next(self) -> None:
        """Give turns to the tenants that have waited longest and have none."""
        for tenant in list(self.waiting):
            queue = self.waiting[tenant]
            while queue and queue[0].done():  # its request was cancelled
                queue.popleft()
            if queue and tenant not in self.running and len(self.running) < self.bounds.running:
                self.running.add(tenant)
                queue.popleft().set_result(None)
                self.waiting[tenant] = self.waiting.pop(tenant)  # behind the others
            self._forget(tenant)

    def _forget(self, tenant: str) -> None:
        if not self.waiting[tenant]:
            del self.waiting[tenant]

    async def steps(self, work: Iterator[T]) -> T | None:
        """Do the work in slices and return its last value."""
        last: T | None = None
        is_done = False
        while not is_done:
            async with self._slice:
                began = time.perf_counter()
                last, is_done = _slice(work, began + SLICE_S, last)
                took = time.perf_counter() - began
            await asyncio.sleep(took)
        return last


def _slice(work: Iterator[T], until: float, last: T | None) -> tuple[T | None, bool]:
    """Work until a time; return the last value, and whether the work is done."""
    for value in work:
        last = value
        if time.perf_counter() >= until:
            return last, False
    return last, True
