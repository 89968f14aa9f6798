"""Turns for the work that clients who follow cause: a little at a time, tenant after tenant.

A change may concern thousands of clients of one tenant, and each of them may read old commits or
send messages. If all of them worked as soon as they could, other requests would wait for seconds.
So each piece of that work waits for its turn here. One round gives turns worth BUDGET, to tenants
one after the other, and is followed by a pause as long as the round, at most PAUSE_MAX_S. Tests:
tests/unit/test_fair_turns.py.
"""

import asyncio
from collections import deque
from typing import Final

# The turns of one round, each worth about a tenth of a millisecond.
BUDGET: Final = 20
PAUSE_MAX_S: Final = 0.005
# Passes of the event loop in which the work of a round gets done.
PASSES: Final = 2

# Costs of a turn: a delivery, a message of a client, a slice of rows, jobs or old commits.
DELIVERY: Final = 1
MESSAGE: Final = 3
SLICE: Final = 12


class FairTurns:
    """The turns of one gateway."""

    def __init__(self) -> None:
        self.queues: dict[str, deque[tuple[asyncio.Event, int]]] = {}
        self._some = asyncio.Event()

    def put(self, tenant: str, event: asyncio.Event, worth: int = DELIVERY) -> None:
        """Set the event when it is the tenant's turn."""
        queue = self.queues.get(tenant)
        if queue is None:
            queue = self.queues[tenant] = deque()
        queue.append((event, worth))
        self._some.set()

    async def turn(self, tenant: str, worth: int) -> None:
        """Wait for a turn of the tenant."""
        event = asyncio.Event()
        self.put(tenant, event, worth)
        await event.wait()

    async def run(self) -> None:
        """Give turns, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self._some.wait()
            began_s = loop.time()
            self.give()
            for _ in range(PASSES):
                await asyncio.sleep(0)
            await asyncio.sleep(min(PAUSE_MAX_S, loop.time() - began_s))

    def give(self) -> None:
        """Give the turns of one round."""
        left = BUDGET
        while left > 0 and self.queues:
            tenant = next(iter(self.queues))
            queue = self.queues.pop(tenant)
            event, worth = queue.popleft()
            event.set()
            left -= worth
            if queue:
                self.queues[tenant] = queue  # behind the others
        if not self.queues:
            self._some.clear()
