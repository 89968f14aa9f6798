"""The frames of one connection on their way to the client, one batch after another.

Every topic waits here while the client does not read, and makes no new frames meanwhile: a topic of
the newest state then sends that alone. So at most one batch of each connection waits in memory,
besides what the transport holds. A client that takes nothing for MUSTER_GATEWAY_UNREAD_MS is cut
off. Tests: tests/integration/test_gateway_ws.py, tests/attack/test_ws_clients.py.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol


class Link(Protocol):
    """The connection below (`http/socket_protocol.py`)."""

    async def send_messages(self, messages: Sequence[bytes]) -> None: ...

    def cut(self, code: int, reason: str) -> None: ...


class Outbox:
    """The way out of one connection.

    `now_ns` is the machine's own clock, `count` counts the frames.
    """

    def __init__(self, link: Link, now_ns: Callable[[], int], count: Callable[[int], None]) -> None:
        self.link = link
        self.now_ns = now_ns
        self.count = count
        self._waits_since_ns = 0
        self._turn = asyncio.Lock()

    async def send(self, messages: Sequence[bytes]) -> None:
        """Send a batch, and wait until there is room for the next.

        Raises OSError if the client has left.
        """
        async with self._turn:
            self._waits_since_ns = self.now_ns()
            try:
                await self.link.send_messages(messages)
            finally:
                self._waits_since_ns = 0
            self.count(len(messages))

    def waits_ns(self) -> int:
        """Return how long the present batch has waited for the client; 0 if none waits."""
        return self.now_ns() - self._waits_since_ns if self._waits_since_ns else 0
