"""Turns for scans over all jobs or over old commits: so many of each tenant at a time.

A scan lets other work run between its slices, but a thousand scans of one tenant would still take
all of the processor. So a tenant has TURNS_OF_TENANT, and its further scans wait for each other. A
scan that waits for its client has no turn. Tests: tests/unit/test_scan_turns.py.
"""

import asyncio
from typing import Final
from weakref import WeakValueDictionary

TURNS_OF_TENANT: Final = 2


class ScanTurns:
    """The turns of all tenants at one gateway. A tenant that scans nothing is forgotten."""

    def __init__(self) -> None:
        self._of_tenant: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def of(self, tenant: str) -> asyncio.Semaphore:
        """Return the tenant's turns, for `async with`."""
        found = self._of_tenant.get(tenant)
        if found is None:
            found = self._of_tenant[tenant] = asyncio.Semaphore(TURNS_OF_TENANT)
        return found
