"""The output of a job as lines.

A follower continues at the first byte that it has not seen, so no line is given twice or left out.
Tests: tests/integration/test_client_cluster.py, tests/integration/test_client_http.py.
"""

import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from libs.client import calls
from libs.client.asynchronous.connection import AsyncConnection
from libs.client.asynchronous.pauses import pause
from libs.client.errors import ApiError, RateLimited, Unavailable, asked_pause_s
from libs.client.lines import LineBuffer, rest_of, text_of
from libs.client.position import Position
from libs.client.timing import SILENCE_S, Patience

STREAMS = ("stdout", "stderr")


async def lines(
    connection: AsyncConnection, ref: str, stream: str | None, query: Mapping[str, object]
) -> AsyncIterator[str]:
    """Yield the lines that a job has written so far."""
    for name in (stream,) if stream else STREAMS:
        buffer = LineBuffer()
        call = calls.reading(calls.job_path(ref, "output"), {"stream": name, **query})
        async with connection.opened(call) as answer:
            async for piece in answer.aiter_bytes():
                for line in buffer.feed(piece):
                    yield text_of(line)
        for line in buffer.end():
            yield text_of(line)


async def followed(
    connection: AsyncConnection, ref: str, rank: int, stream: str | None
) -> AsyncIterator[str]:
    """Yield the lines of both streams as they are written, until the job has ended."""
    wanted = (stream,) if stream else STREAMS
    buffers = {name: LineBuffer() for name in wanted}
    async for frame in _frames(connection, ref, rank):
        if not frame:
            for line in rest_of(buffers):
                yield line
        for name, data in frame.items():
            if name in buffers:
                for each in buffers[name].feed(data):
                    yield text_of(each)
    for line in rest_of(buffers):
        yield line


async def _frames(
    connection: AsyncConnection, ref: str, rank: int
) -> AsyncIterator[dict[str, bytes]]:
    """Yield new bytes by stream, over broken connections; an empty frame before a new attempt."""
    position = Position({})
    patience = Patience(connection.timing.away_s)
    while True:
        query = {"rank": rank, **position.offsets, "attempt": position.attempt or None}
        call = calls.reading(calls.job_path(ref, "attach"), query, timeout_s=SILENCE_S)
        fault: ApiError = Unavailable(f"{call.what} ended before the job")
        try:
            async with connection.opened(call) as answer:
                buffer = LineBuffer()
                async for piece in answer.aiter_bytes():
                    patience.reset()
                    for line in buffer.feed(piece):
                        frame = calls.decoded(line, dict[str, Any], call.what)
                        attempt = int(frame.get("attempt") or position.attempt)
                        if attempt < position.attempt:
                            continue  # from a gateway that has not read the later attempt yet
                        if position.begin(attempt):
                            yield {}
                        if "data" in frame:
                            yield {str(frame["stream"]): position.take(frame)}
                        elif "exit_code" in frame:
                            return
        except (Unavailable, RateLimited) as error:
            fault = error
        pause_s = patience.pause_s(time.monotonic(), asked_pause_s(fault))
        if pause_s is None:
            raise fault
        await pause(pause_s)
