"""Values by sequence, bounded in number and bytes.

Pure. When there are too many, the tenant that has most loses its oldest first, so a tenant that
reads many moments does not push out those of others. Tests: tests/unit/test_kept_moments.py.
"""

from collections import Counter
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class _Held(NamedTuple, Generic[T]):
    value: T
    size: int
    tenant: str


class Kept(Generic[T]):
    """At most `most` values of together at most `bytes_max`; the newest one may alone be larger."""

    def __init__(self, most: int, bytes_max: int) -> None:
        self.most = most
        self.bytes_max = bytes_max
        self.bytes = 0
        self._held: dict[int, _Held[T]] = {}

    def get(self, seq: int) -> T | None:
        """Return the value, which then counts as the newest of its tenant."""
        held = self._held.pop(seq, None)
        if held is None:
            return None
        self._held[seq] = held
        return held.value

    def put(self, seq: int, value: T, size: int, tenant: str) -> list[T]:
        """Keep a value for this tenant; drop others until all bounds hold, and return them."""
        dropped = self._drop(seq)
        self._held[seq] = _Held(value, size, tenant)
        self.bytes += size
        while len(self._held) > 1 and (len(self._held) > self.most or self.bytes > self.bytes_max):
            dropped += self._drop(self._oldest(seq))
        return dropped

    def nearest(self, seq: int) -> int:
        """Return the greatest kept sequence that is not beyond `seq`; 0 if there is none."""
        return max((each for each in self._held if each <= seq), default=0)

    def __len__(self) -> int:
        return len(self._held)

    def _oldest(self, newest: int) -> int:
        """Return the oldest value of the tenant that has most, other than the newest value."""
        counts = Counter(held.tenant for held in self._held.values())
        others = [seq for seq in self._held if seq != newest]
        return max(others, key=lambda seq: counts[self._held[seq].tenant])

    def _drop(self, seq: int) -> list[T]:
        held = self._held.pop(seq, None)
        if held is None:
            return []
        self.bytes -= held.size
        return [held.value]
