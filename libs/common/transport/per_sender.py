"""Bounds the messages of each sender to a handler, so that one sender cannot delay the others.

The sender is the last token of the subject, because the server lets a node use only its own
subjects. A message over a bound is dropped without an answer. Senders repeat lost requests.
"""

import asyncio
from typing import Final

from libs.common.transport.bus import Handler

# Messages of one sender that are handled at once, and that may wait.
AT_ONCE: Final = 16
WAITING_MAX: Final = 48
# Places of a concurrent subscription with bounded senders. Fewer than 64 hostile senders cannot
# fill them.
PLACES: Final = 64 * (AT_ONCE + WAITING_MAX)
# Messages of one sender that a handler reads per second, and at once after a pause.
PER_SECOND: Final = 50.0
BURST: Final = 200.0


class Places:
    """A handler with a bounded number of places for each sender.

    `dropped` counts messages that found no place.
    """

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.free: dict[str, asyncio.Semaphore] = {}
        self.held: dict[str, int] = {}
        self.dropped = 0

    async def __call__(self, subject: str, data: bytes) -> bytes | None:
        sender = _sender(subject)
        if self.held.get(sender, 0) >= AT_ONCE + WAITING_MAX:
            self.dropped += 1
            return None
        self.held[sender] = self.held.get(sender, 0) + 1
        try:
            async with self.free.setdefault(sender, asyncio.Semaphore(AT_ONCE)):
                return await self.handler(subject, data)
        finally:
            self.held[sender] -= 1
            if not self.held[sender]:
                del self.held[sender], self.free[sender]


class Rate:
    """A handler that reads at most PER_SECOND messages a second from each sender.

    `dropped` counts the others.
    """

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.left: dict[str, tuple[float, float]] = {}
        self.dropped = 0

    async def __call__(self, subject: str, data: bytes) -> bytes | None:
        sender, now_s = _sender(subject), asyncio.get_running_loop().time()
        at_s, left = self.left.get(sender, (now_s, BURST))
        left = min(BURST, left + (now_s - at_s) * PER_SECOND)
        self.left[sender] = now_s, max(0.0, left - 1)
        if left < 1:
            self.dropped += 1
            return None
        return await self.handler(subject, data)


def _sender(subject: str) -> str:
    return subject.rpartition(".")[2]
