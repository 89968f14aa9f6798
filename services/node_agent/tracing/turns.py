"""Lets one alignment run at a time on a node, and tenants take turns.

Each tenant has at most one alignment that waits for the node's place, so a tenant with many traces
delays the others by one alignment at a time. Test: tests/unit/test_trace_turns.py.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class Turns:
    """The alignments of one node."""

    def __init__(self) -> None:
        self.node = asyncio.Semaphore(1)
        # A tenant's semaphore lives as long as an alignment holds it or waits for it.
        self.tenants = WeakValueDictionary[str, asyncio.Semaphore]()

    @asynccontextmanager
    async def of(self, tenant: str) -> AsyncIterator[None]:
        """Wait for a turn of this tenant, and hold it."""
        own = self.tenants.get(tenant) or asyncio.Semaphore(1)
        self.tenants[tenant] = own
        async with own, self.node:
            yield
