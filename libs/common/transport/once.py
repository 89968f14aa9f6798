"""A store that takes each key once, over all processes that use it.

One-time links and sign-ons use it: the process whose `take` returns True is the only one that may
act on the key. `once_nats.KvOnce` is the real store, `MemoryOnce` its twin in memory.
"""

from typing import Protocol


class OnceStore(Protocol):
    """Keys consist of letters, digits and `-_`. A key is forgotten after some minutes."""

    async def take(self, key: str) -> bool:
        """Return True to the first caller with this key, and False to all others.

        Raises errors.Unavailable if the store does not confirm it in time; the key may be taken
        then.
        """
        ...


class MemoryOnce:
    """A store in memory; see `OnceStore`."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    async def take(self, key: str) -> bool:
        if key in self.taken:
            return False
        self.taken.add(key)
        return True
