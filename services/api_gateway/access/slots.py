"""Bounds how much of one kind of work a tenant may have under way; more of it waits in order.

Answers of nodes come over one connection to the log's servers, one after the other. If a tenant
asked for hundreds of pieces of output at once, every answer to another tenant would come behind
them. Tests: tests/unit/test_slots.py.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

# Pieces of output that one tenant reads from nodes at one time.
OUTPUT_ASKS_MAX: Final = 4


class Slots:
    """The places of all tenants: `most` for each."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._of: dict[str, asyncio.Semaphore] = {}
        self._users: dict[str, int] = {}

    @asynccontextmanager
    async def of(self, tenant: str) -> AsyncGenerator[None]:
        """Hold one of the tenant's places; wait until one is free."""
        places = self._of.setdefault(tenant, asyncio.Semaphore(self.most))
        self._users[tenant] = self._users.get(tenant, 0) + 1
        try:
            async with places:
                yield
        finally:
            self._users[tenant] -= 1
            if not self._users[tenant]:
                del self._users[tenant], self._of[tenant]
