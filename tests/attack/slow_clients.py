"""`python -m tests.attack.slow_clients PORT KEY COUNT`: many clients that send slowly, until the
program is ended.

There are five kinds of clients, as many of each: the first sends nothing, the second a head without
end, the third a body without a key. The fourth and the fifth send a body with the key, to a model
and to a route of the cluster. Each sends a byte a second. A client whose
connection closes connects again. Each second the program prints what it has reached, as JSON.
"""

import asyncio
import json
import resource
import sys
import time
from collections import Counter
from typing import Any, Final

import uvloop

# Files of this process that are no clients.
FILES_MORE: Final = 200
CONNECTS_AT_ONCE: Final = 500
EVERY_S: Final = 1.0
STATUS_AT: Final = slice(9, 12)


def openings(key: str) -> list[bytes]:
    """Return what each kind of client sends first."""
    head, length = "POST {} HTTP/1.1\r\nhost: x\r\n", "content-length: 1000000\r\n\r\n{{"
    keyed = f"authorization: Bearer {key}\r\n"
    chat, jobs = "/v1/chat/completions", "/v1/jobs"
    return [
        b"",
        (head.format(chat) + "x-").encode(),
        (head.format(chat) + length).encode(),
        (head.format(chat) + keyed + length).encode(),
        (head.format(jobs) + keyed + length).encode(),
    ]


class Slow(asyncio.Protocol):
    """One client."""

    def __init__(self, flood: "Flood", opening: bytes) -> None:
        self.flood = flood
        self.opening = opening
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.flood.open.add(self)
        self.flood.count["opened"] += 1
        self.transport.write(self.opening)

    def data_received(self, data: bytes) -> None:
        self.flood.count[data[STATUS_AT].decode(errors="replace")] += 1

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.flood.open.discard(self)
        self.flood.count["closed"] += 1

    def drip(self) -> None:
        if self.opening and not self.transport.is_closing():
            self.transport.write(b"x")


class Flood:
    """All clients."""

    def __init__(self, port: int, key: str, clients: int) -> None:
        self.port = port
        self.kinds = openings(key)
        self.clients = clients
        self.open: set[Slow] = set()
        self.count: Counter[str] = Counter()
        self.made = 0

    async def run(self) -> None:
        """Keep as many clients connected as wanted."""
        dripped_s = time.monotonic()
        while True:
            missing = min(CONNECTS_AT_ONCE, self.clients - len(self.open))
            await asyncio.gather(*(self._connect() for _ in range(missing)))
            await asyncio.sleep(0.05)
            if time.monotonic() - dripped_s >= EVERY_S:
                dripped_s = time.monotonic()
                for each in list(self.open):
                    each.drip()
                print(json.dumps({"open": len(self.open), **self.count}), flush=True)

    async def _connect(self) -> None:
        self.made += 1
        opening = self.kinds[self.made % len(self.kinds)]
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(5.0):
                await loop.create_connection(lambda: Slow(self, opening), "127.0.0.1", self.port)
        except (OSError, TimeoutError):
            self.count["not connected"] += 1


def main(port: int, key: str, clients: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(Flood(port, key, min(clients, hard - FILES_MORE)).run())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
