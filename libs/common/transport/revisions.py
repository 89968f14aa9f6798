"""A store of small values by key, where a write names the revision that it replaces.

`revisions_nats.KvRevisions` is the real one, `MemoryRevisions` its twin in memory.
"""

from typing import NamedTuple, Protocol

from libs.common.errors import Fenced


class Kept(NamedTuple):
    """A value with its revision. Revision 0 with no bytes: there is no value yet."""

    data: bytes
    revision: int


NOTHING = Kept(b"", 0)


class Revisions(Protocol):
    """Keys consist of letters, digits and `-_.`; every write makes a later revision."""

    async def get(self, key: str) -> Kept:
        """Return the value of a key. Raises errors.Unavailable."""
        ...

    async def put(self, key: str, data: bytes, revision: int) -> int:
        """Replace the value of this revision and return the new one.

        Raises errors.Fenced if the value has another revision, and errors.Unavailable if it is not
        known whether it was stored.
        """
        ...


class MemoryRevisions:
    """A store in memory; see `Revisions`."""

    def __init__(self) -> None:
        self.values: dict[str, Kept] = {}
        self.last = 0

    async def get(self, key: str) -> Kept:
        return self.values.get(key, NOTHING)

    async def put(self, key: str, data: bytes, revision: int) -> int:
        if (await self.get(key)).revision != revision:
            raise Fenced(f"{key} has another revision than {revision}: another process wrote it")
        self.last += 1
        self.values[key] = Kept(data, self.last)
        return self.last
