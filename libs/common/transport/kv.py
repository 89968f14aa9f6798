"""A store of bytes by key beside the log, for the last output of jobs, off their nodes.

`kv_nats.KvOutputs` is the real one (a JetStream key-value bucket), `MemoryOutputs` its twin in
memory.
"""

from typing import Protocol


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
    """A store of output in memory; see `OutputStore`."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    async def put(self, key: str, data: bytes) -> None:
        self.values[key] = data

    async def get(self, key: str) -> bytes | None:
        return self.values.get(key)
