"""Gathers requests into batches, for model servers that work on one request at a time.

Requests with equal keys may share a batch. A key names the tenant, so nothing of one tenant's
request can come into the answer of another. A batch goes when it is full, or when its first request
has waited long enough and its tenant has fewer batches under way than the model has replicas: while
all replicas are busy, the next batch grows. Pure. Tests: tests/unit/test_serving_batching.py.
"""

from collections.abc import Hashable
from typing import Final, Generic, NamedTuple, TypeVar

Member = TypeVar("Member", bound=Hashable)

# Batches of one tenant that may be under way while no replica is ready.
UNDER_WAY_MIN: Final = 1


class BatchKey(NamedTuple):
    """The values that all requests of one batch share: their tenant, and all but their inputs."""

    tenant: str
    shared: Hashable


class Batch(Generic[Member]):
    """Requests that go to a replica together, in the order of their arrival."""

    __slots__ = ("began_ns", "is_full", "items", "key", "members")

    def __init__(self, key: BatchKey, began_ns: int) -> None:
        self.key = key
        self.began_ns = began_ns
        self.members: dict[Member, int] = {}
        self.items = 0
        self.is_full = False


class Batches(Generic[Member]):
    """The batches of one model. A batch has at most `items_max` inputs."""

    def __init__(self, items_max: int, wait_ns: int) -> None:
        self.items_max = items_max
        self.wait_ns = wait_ns
        self.under_way: dict[str, int] = {}
        self._open: dict[BatchKey, Batch[Member]] = {}
        self._full: list[Batch[Member]] = []

    def join(self, key: BatchKey, member: Member, items: int, now_ns: int) -> None:
        """Let a request join the open batch of its key. It has at most `items_max` inputs."""
        batch = self._open.get(key)
        if batch is not None and batch.items + items > self.items_max:
            self._close(batch)
            batch = None
        if batch is None:
            batch = self._open[key] = Batch(key, now_ns)
        batch.members[member] = items
        batch.items += items
        if batch.items == self.items_max:
            self._close(batch)

    def leave(self, key: BatchKey, member: Member) -> None:
        """Remove a request whose client left, if its batch has not gone yet."""
        for batch in (self._open.get(key), *self._full):
            if batch is not None and member in batch.members:
                batch.items -= batch.members.pop(member)
                if not batch.members:
                    self._drop(batch)
                return

    def due(self, replicas: int, now_ns: int) -> list[Batch[Member]]:
        """Return the batches that go now, and count them as under way. Call `ended` for each."""
        due, self._full = self._full, []
        for batch in due:
            self._begin(batch)
        for batch in list(self._open.values()):
            busy = self.under_way.get(batch.key.tenant, 0)
            if batch.began_ns + self.wait_ns <= now_ns and busy < max(UNDER_WAY_MIN, replicas):
                del self._open[batch.key]
                self._begin(batch)
                due.append(batch)
        return due

    def next_ns(self, now_ns: int) -> int | None:
        """Return when the wait of an open batch is over; None if none waits for a time."""
        ends = [batch.began_ns + self.wait_ns for batch in self._open.values()]
        return min((end for end in ends if end > now_ns), default=None)

    def ended(self, batch: Batch[Member]) -> None:
        """Note that a batch is no longer under way."""
        left = self.under_way.pop(batch.key.tenant) - 1
        if left:
            self.under_way[batch.key.tenant] = left

    @property
    def is_idle(self) -> bool:
        """True if no request waits and no batch is under way."""
        return not (self._open or self._full or self.under_way)

    def _begin(self, batch: Batch[Member]) -> None:
        self.under_way[batch.key.tenant] = self.under_way.get(batch.key.tenant, 0) + 1

    def _close(self, batch: Batch[Member]) -> None:
        del self._open[batch.key]
        batch.is_full = True
        self._full.append(batch)

    def _drop(self, batch: Batch[Member]) -> None:
        if batch.is_full:
            self._full.remove(batch)
        else:
            del self._open[batch.key]


def parts(total: int, sizes: list[int]) -> list[int]:
    """Return `total` divided by the sizes. The parts are whole numbers whose sum is `total`."""
    whole, done, found = sum(sizes), 0, []
    seen = 0
    for size in sizes:
        seen += size
        end = total * seen // whole
        found.append(end - done)
        done = end
    return found
