"""Bounds the bytes of the prefix indexes of all models in one gateway.

A tenant may deploy any number of models, so a bound for each index is not enough. If all together
need too much, the tenant whose entries need most memory loses its least recently used entries, in
the index where it has most. Pure. Tests: tests/unit/test_serving_prefix_space.py.
"""

from collections import defaultdict
from heapq import heapify, heappop, heappush
from typing import Any, Final

from services.api_gateway.serving.prefix_index import PrefixIndex

# After a removal one in so many bytes of the space is free. Otherwise each prompt would have to
# look for the tenant with the largest part.
FREE_PART: Final = 16


class PrefixSpace:
    """The indexes of one gateway, and the bytes that they need together."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._of: dict[PrefixIndex[Any], int] = {}

    def note(self, index: PrefixIndex[Any]) -> None:
        """Count the bytes of an index that has changed, and remove entries beyond the bound."""
        self._count(index)
        if self.used_bytes <= self.bytes_max:
            return
        self._shorten(self.bytes_max - self.bytes_max // FREE_PART)

    def _shorten(self, enough: int) -> None:
        """Let the tenant that has most lose, index by index, until all need `enough` bytes.

        What each tenant has is looked up once: with thousands of models many indexes are shortened.
        """
        held = defaultdict[str, list[tuple[int, int, PrefixIndex[Any]]]](list)
        for number, index in enumerate(self._of):
            for tenant, size in index.by_tenant().items():
                held[tenant].append((-size, number, index))
        largest = [(sum(size for size, *_ in each), tenant) for tenant, each in held.items()]
        heapify(largest)
        for each in held.values():
            heapify(each)
        while self.used_bytes > enough:
            total, tenant = heappop(largest)
            size, _, index = heappop(held[tenant])
            index.drop(tenant, self.used_bytes - enough)
            self._count(index)
            if held[tenant]:
                heappush(largest, (total - size, tenant))

    def remove(self, index: PrefixIndex[Any]) -> None:
        """Stop counting the bytes of an index whose model is gone."""
        self.used_bytes -= self._of.pop(index, 0)

    def _count(self, index: PrefixIndex[Any]) -> None:
        self.used_bytes += index.used_bytes - self._of.get(index, 0)
        self._of[index] = index.used_bytes
