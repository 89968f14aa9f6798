"""A closed-loop HTTP client that costs little: one protocol object per connection, answers cut by
length or by the last chunk.

Figures are per request, in seconds: until the first byte of the answer's body, and until its end.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Final

STOP_S: Final = 30.0


class Load:
    """Measurements of all connections of one run."""

    def __init__(self, until_s: float) -> None:
        self.until_s = until_s
        self.first: list[float] = []
        self.whole: list[float] = []
        self.refused: list[bytes] = []


class Connection(asyncio.Protocol):
    """One client: the next request is sent when the last one is answered."""

    def __init__(self, load: Load, request: bytes) -> None:
        self.load, self.request = load, request
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self._send()

    def _send(self) -> None:
        self.head, self.left, self.tail, self.first_s = b"", -1, b"", 0.0
        self.began = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.left == -1:
            self.head += data
            end = self.head.find(b"\r\n\r\n")
            if end < 0:
                return
            head, data = self.head[:end].lower(), self.head[end + 4 :]
            if not head.startswith(b"http/1.1 200"):
                self.load.refused.append(self.head)
            length = head.find(b"content-length:")
            self.left = int(head[length + 15 :].split(b"\r\n", 1)[0]) if length >= 0 else -2
        if data and not self.first_s:
            self.first_s = time.perf_counter() - self.began
        if self.left >= 0:
            self.left -= len(data)
        else:
            self.tail = (self.tail + data)[-7:]
        if self.left == 0 or self.tail == b"\r\n0\r\n\r\n":
            self._ended()

    def _ended(self) -> None:
        now = time.perf_counter()
        self.load.first.append(self.first_s)
        self.load.whole.append(now - self.began)
        if now < self.load.until_s:
            self._send()
        else:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def run(
    ports: Sequence[int], request: bytes, clients: int, seconds: float, spread_s: float = 0.0
) -> Load:
    """`clients` connections, taking turns over the ports, for `seconds`; they begin over
    `spread_s`.

    None may have failed.
    """
    loop = asyncio.get_running_loop()
    load = Load(time.perf_counter() + seconds)
    pairs = []
    for number in range(clients):
        pairs.append(
            await loop.create_connection(
                lambda: Connection(load, request), "127.0.0.1", ports[number % len(ports)]
            )
        )
        if spread_s:
            await asyncio.sleep(spread_s / clients)
    async with asyncio.timeout(seconds + STOP_S):
        await asyncio.gather(*(connection.over for _, connection in pairs))
    assert not load.refused, (
        f"{len(load.refused)} of {len(load.whole)} requests were refused, the first: "
        f"{load.refused[0]!r}"
    )
    return load


def request(path: str, key: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\ncontent-type: "
        "application/json\r\n"
    )
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
