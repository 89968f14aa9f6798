"""A store of a few values by number, in which no write is lost to another process.

`pages_nats.NatsPages` is the real one, `MemoryPages` its twin in memory. Quota keeps its rates in
it (`services/quota/kept_rates.py`).
"""

from typing import Protocol


class Overtaken(Exception):
    """Another process wrote the value since this one read it."""


class PageStore(Protocol):
    """Values by number. Each write names the revision that it replaces."""

    async def get(self, number: int) -> tuple[bytes, int]:
        """Return a value and its revision; empty and 0 if there is none.

        Raises errors.Unavailable.
        """
        ...

    async def put(self, number: int, data: bytes, revision: int) -> int:
        """Replace the value of this revision, and return the new one.

        Raises Overtaken, errors.Unavailable.
        """
        ...


class MemoryPages:
    """A store in memory, which outlives a simulated process."""

    def __init__(self) -> None:
        self.values: dict[int, tuple[bytes, int]] = {}

    async def get(self, number: int) -> tuple[bytes, int]:
        return self.values.get(number, (b"", 0))

    async def put(self, number: int, data: bytes, revision: int) -> int:
        found = self.values.get(number, (b"", 0))[1]
        if found != revision:
            raise Overtaken(f"page {number} has revision {found}, not {revision}")
        self.values[number] = (data, revision + 1)
        return revision + 1
