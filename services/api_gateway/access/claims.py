"""Runs requests with the same Idempotency-Key one after the other, so that each sees what the first
one recorded.

Otherwise requests that arrive together would each find that the thing does not exist, and record
it. Gateways do not wait for each other: docs/decisions/0027-one-gateway-records-a-key-once.md. Held
by tests/integration/test_gateway_idempotency.py.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Claims:
    """The Idempotency-Keys in use now. A key without requests is forgotten."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._requests: dict[str, int] = {}

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        """Wait for earlier requests with the same key. An empty key waits for none."""
        if not key:
            yield
            return
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._requests[key] = self._requests.get(key, 0) + 1
        try:
            async with lock:
                yield
        finally:
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key], self._locks[key]

    def __len__(self) -> int:
        return len(self._locks)
