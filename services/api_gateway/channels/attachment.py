"""The stream behind `muster run`: both outputs of one member and every change of state, until the
job has ended.

Each line is a JSON object. `{"stream", "attempt", "offset", "data"}` contains output in base64; the
offset counts within that attempt. `{"state", "attempt", "reason", "node_ids"}` comes at each change
and every MUSTER_KEEPALIVE_MS. `{"exit_code", "state", "reason", "attempt"}` comes last. If a client
reconnects after its attempt ended, it first gets the rest of that attempt.
"""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from libs.common.state.cluster import Job
from services.api_gateway.channels.relay import STREAMS, Reader
from services.api_gateway.gateway import Gateway
from services.api_gateway.views.jobs import ended

# Frames that wait to be sent. A slow client delays the reading of its job's output instead of
# filling this process's memory.
FRAMES_AHEAD_MAX: Final = 16

_encode = msgspec.json.Encoder().encode


class Attachment:
    """One client's stream.

    `offsets` count in attempt `attempt`. If that is 0 or never existed, the stream begins with the
    current attempt's first byte.
    """

    def __init__(
        self, gateway: Gateway, job: Job, rank: int, offsets: dict[str, int], attempt: int
    ) -> None:
        self.gateway = gateway
        self.job = job
        self.rank = rank
        self.attempt = attempt if 0 < attempt <= job.attempt else job.attempt
        self.offsets = offsets if attempt in (0, self.attempt) else {}
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.places = asyncio.Semaphore(FRAMES_AHEAD_MAX)

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Yield the lines as they come."""
        driver = asyncio.create_task(self._drive())
        driver.add_done_callback(lambda _: self.lines.put_nowait(None))
        try:
            while (line := await self.lines.get()) is not None:
                self.places.release()
                yield line
            driver.result()
        finally:
            driver.cancel()

    async def _drive(self) -> None:
        while True:
            attempt = self.attempt
            async with asyncio.TaskGroup() as tasks:
                for stream in STREAMS:
                    tasks.create_task(self._pump(attempt, stream))
                await self._send_states(attempt)
            self.offsets = {}
            if self.job.attempt == attempt and ended(self.job):
                break
            self.attempt += 1
        last: dict[str, object] = {
            "exit_code": self.job.exit_code,
            "state": self.job.state,
            "reason": self.job.reason,
            "attempt": self.job.attempt,
        }
        await self._send(last)

    async def _send_states(self, attempt: int) -> None:
        """Send each change of state until the attempt is over."""
        while self.job.attempt == attempt and not ended(self.job):
            state = self.job.state
            frame = {
                "state": state,
                "attempt": attempt,
                "reason": self.job.reason,
                "node_ids": list(self.job.members),
            }
            await self._send(frame)
            quiet_ms = self.gateway.settings.keepalive_ms
            deadline = self.gateway.clock.boot_ns() + quiet_ms * 1_000_000
            while (
                self.job.state == state
                and self.job.attempt == attempt
                and self.gateway.clock.boot_ns() < deadline
            ):
                await self.gateway.waiting.job(self.job.job_id, quiet_ms / 1_000)

    async def _pump(self, attempt: int, stream: str) -> None:
        reader = Reader(
            gateway=self.gateway, job=self.job, attempt=attempt, rank=self.rank, stream=stream
        )
        async with aclosing(reader.pieces(self.offsets.get(stream, 0), follow=True)) as pieces:
            async for piece in pieces:
                await self._send(
                    {
                        "stream": stream,
                        "attempt": attempt,
                        "offset": piece.offset,
                        "data": b64encode(piece.data).decode(),
                    }
                )

    async def _send(self, frame: dict[str, object]) -> None:
        await self.places.acquire()
        self.lines.put_nowait(_encode(frame) + b"\n")
