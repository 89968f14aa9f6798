"""A store of bytes by key beside the log, for the last output of jobs, off their nodes.

`kv_nats.KvOutputs` is the real one (a JetStream key-value bucket), `MemoryOutputs` its twin in
memory.
"""

from typing import Protocol

from libs.common.transport.revisions import Kept


class OutputStore(Protocol):
    """Keys consist of letters, digits and `-/_=.`.

    A put replaces an earlier one of the same key.
    """

    async def put(self, key: str, data: bytes) -> None:
        """Store the bytes. Raises errors.Unavailable if the store does not confirm it in time."""
        ...

    async def get(self, key: str) -> bytes | None:
        """Return the bytes; None if there are none.

        Raises errors.Unavailable if the store does not answer in time.
        """
        ...


class PlaceStore(OutputStore, Protocol):
    """A store of which a writer may replace the one value that it has read."""

    async def kept(self, key: str) -> Kept:
        """Return the bytes with their revision. Raises errors.Unavailable."""
        ...

    async def swap(self, key: str, data: bytes, revision: int) -> bool:
        """Replace the bytes of this revision; return False if there are others.

        Raises errors.Unavailable.
        """
        ...


def output_key(node_id: str, job_id: str, attempt: int, rank: int, stream: str) -> str:
    """Return the key of the last bytes of a member's stream.

    The first word is the node, which may write no other keys (`subjects.output`).
    """
    return f"{node_id}.{earlier_output_key(job_id, attempt, rank, stream)}"


def earlier_output_key(job_id: str, attempt: int, rank: int, stream: str) -> str:
    """Return the key that agents of earlier versions used.

    No node may write such keys any more; stored ones are still read.
    """
    return f"{job_id}.{attempt}.{rank}.{stream}"


class MemoryOutputs:
    """A store of output in memory; see `OutputStore` and `PlaceStore`."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.revisions: dict[str, int] = {}

    async def put(self, key: str, data: bytes) -> None:
        self.values[key] = data
        self.revisions[key] = self.revisions.get(key, 0) + 1

    async def kept(self, key: str) -> Kept:
        return Kept(self.values.get(key, b""), self.revisions.get(key, 0))

    async def swap(self, key: str, data: bytes, revision: int) -> bool:
        if self.revisions.get(key, 0) != revision:
            return False
        await self.put(key, data)
        return True

    async def get(self, key: str) -> bytes | None:
        return self.values.get(key)
