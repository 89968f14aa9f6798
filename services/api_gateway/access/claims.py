"""Runs requests with the same key one after the other, so that each sees what the first recorded.

The key is an Idempotency-Key, or names what the requests change. Otherwise requests that arrive
together would each find that the thing does not exist, and record it. Gateways do not wait for each
other: docs/decisions/0027-one-gateway-records-a-key-once.md.
Tests: tests/integration/test_gateway_idempotency.py and tests/attack/test_model_floods.py.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.api_gateway.problems import Problem


class Claims:
    """The keys in use now. A key without requests is forgotten."""

    def __init__(self) -> None:
        self._locks: dict[str, asyncio.Lock] = {}
        self._requests: dict[str, int] = {}

    @asynccontextmanager
    async def of(self, key: str, within_s: float | None = None) -> AsyncIterator[None]:
        """Wait for earlier requests with the same key. An empty key waits for none.

        Raises Problem 503 if they have not ended after `within_s`.
        """
        if not key:
            yield
            return
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._requests[key] = self._requests.get(key, 0) + 1
        try:
            await _acquire(lock, within_s)
            try:
                yield
            finally:
                lock.release()
        finally:
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key], self._locks[key]

    def __len__(self) -> int:
        return len(self._locks)


async def _acquire(lock: asyncio.Lock, within_s: float | None) -> None:
    try:
        async with asyncio.timeout(within_s):
            await lock.acquire()
    except TimeoutError as error:
        text = f"earlier requests of this kind have not ended within {within_s:g} s: try again"
        raise Problem(503, text) from error
