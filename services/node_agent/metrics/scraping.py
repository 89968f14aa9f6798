"""The port of a node's device metrics for Prometheus: GET /metrics, one answer per connection.

Every process of this machine can connect, jobs included. Therefore bounds apply: open connections,
the bytes of a request, its time, and how often the answer is computed again. If the port is in use,
the agent logs a warning and works without it. Test: tests/integration/test_scraping.py.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from services.node_agent.metrics.exposition import CONTENT_TYPE

PATH: Final = "/metrics"
OPEN_MAX: Final = 16
HEAD_BYTES_MAX: Final = 8 << 10
ANSWER_S: Final = 5.0
# An answer serves everybody who asks within so long.
FRESH_S: Final = 0.1

logger = logging.getLogger(__name__)


@contextlib.asynccontextmanager
async def scraped(host: str, port: int, text: Callable[[], Awaitable[str]]) -> AsyncIterator[None]:
    """Answer requests during the block; with port 0, do nothing."""
    server = await _listen(host, port, _Answers(text)) if port else None
    try:
        yield
    finally:
        if server is not None:
            server.close()


async def _listen(host: str, port: int, answers: "_Answers") -> asyncio.Server | None:
    try:
        return await asyncio.start_server(answers.connected, host, port, limit=HEAD_BYTES_MAX)
    except OSError as error:
        why = error.strerror or error
        logger.warning(
            (
                "no metrics of the devices: %s:%d is not available (%s); choose another "
                "MUSTER_METRICS_PORT"
            ),
            host,
            port,
            why,
        )
        return None


class _Answers:
    def __init__(self, text: Callable[[], Awaitable[str]]) -> None:
        self.text = text
        self.open = 0
        self.body, self.fresh_until_s = b"", 0.0

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client within its time limit."""
        self.open += 1
        try:
            if self.open <= OPEN_MAX:
                async with asyncio.timeout(ANSWER_S):
                    writer.write(await self._answer(await reader.readuntil(b"\r\n\r\n")))
                    writer.close()
                    await writer.wait_closed()
        except (
            TimeoutError,
            OSError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ) as error:
            logger.debug("a scrape ended early: %r", error)
        finally:
            self.open -= 1
            writer.transport.abort()

    async def _answer(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        if (method, rest.split(b" ", 1)[0].split(b"?", 1)[0]) != (b"GET", PATH.encode()):
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        body = await self._body()
        headers = (
            f"HTTP/1.1 200 OK\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: "
            f"{len(body)}\r\nConnection: close\r\n\r\n"
        )
        return headers.encode() + body

    async def _body(self) -> bytes:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self.fresh_until_s:
            self.body, self.fresh_until_s = (await self.text()).encode(), now_s + FRESH_S
        return self.body
