"""One channel into a job at its node's end: bytes by offset, out of descriptors and into one.

Nothing is read before it is asked for, and one piece of each stream is kept until the next is asked
for, so that a question whose answer was lost can be repeated; what is written waits in the kernel's
buffer or with the asker. So a channel holds at most CHUNK_BYTES per stream here, whatever its ends
do. Opened by `channels.py`. Tests: tests/integration/test_channels.py.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from libs.common.errors import Refused
from libs.common.messages.channel_messages import CHUNK_BYTES
from services.node_agent.directories.protocol import Piece, Taken

# What a put waits for room in a pipe that nobody reads; the asker then offers the rest again.
WRITE_WAIT_S: Final = 5.0


class Output:
    """One stream; `ended` once nothing more can come.

    `waits_for_end`: it is over when the process is, and not before, for that one may still say how
    it ended.
    """

    def __init__(self, descriptor: int, waits_for_end: bool) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._waits_for_end = waits_for_end
        self._process_over = False
        self.ended = False
        self._offset = 0
        self._kept = b""
        self._turn = asyncio.Lock()
        self._wake = asyncio.Event()

    async def read(self, offset: int, max_bytes: int, wait_s: float) -> Piece:
        """At once when there is something, else within `wait_s`.

        Raises Refused for what was let go or is not there yet, and for a connection that broke.
        """
        async with self._turn:
            if offset != self._offset:
                if offset != self._offset - len(self._kept):
                    raise Refused(
                        f"bytes from {offset} on are not to be had: the next are from "
                        f"{self._offset} on"
                    )
                return Piece(offset, self._kept, False)
            self._kept = b""
            data = self._take(max_bytes)
            if data is None and await self._something(wait_s):
                data = self._take(max_bytes)
            self._kept = data or b""
            self._offset += len(self._kept)
            return Piece(offset, self._kept, data == b"")

    def process_is_over(self) -> None:
        """What it wrote lies in the kernel's buffer; what strangers add to it later is not waited
        for.
        """
        self._process_over = True
        self._wake.set()

    def close(self) -> None:
        self.descriptor = _closed(self.descriptor)

    def _take(self, max_bytes: int) -> bytes | None:
        """Empty: the end. None: nothing yet."""
        data = b""
        if self.descriptor >= 0:
            try:
                data = os.read(self.descriptor, min(max_bytes, CHUNK_BYTES))
            except BlockingIOError:
                return b"" if self._process_over else None
            except ConnectionError as error:
                raise Refused("the job reset the connection") from error
            except OSError:  # a terminal that nobody has open any more
                data = b""
        if data:
            return data
        self.ended = True
        self.close()
        return None if self._waits_for_end and not self._process_over else b""

    async def _something(self, wait_s: float) -> bool:
        loop, descriptor = asyncio.get_running_loop(), self.descriptor
        self._wake.clear()
        if self._process_over:
            return True
        if descriptor >= 0:
            loop.add_reader(descriptor, self._wake.set)
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
            return True
        except TimeoutError:
            return False
        finally:
            if 0 <= descriptor == self.descriptor:
                loop.remove_reader(descriptor)


class Input:
    """The other direction.

    `say_end` tells whoever reads that nothing more comes; without it the descriptor is closed.
    """

    def __init__(self, descriptor: int, say_end: Callable[[], None] | None = None) -> None:
        self._descriptor = descriptor
        self._say_end = say_end or self.close
        self._taken = 0
        self.said_end = False
        self._over = descriptor < 0
        self._turn = asyncio.Lock()
        if descriptor >= 0:
            os.set_blocking(descriptor, False)

    async def write(self, offset: int, data: bytes, eof: bool) -> Taken:
        """As far as there is room within WRITE_WAIT_S. Raises Refused for a gap."""
        async with self._turn:
            if offset > self._taken:
                raise Refused(f"a gap: the next byte wanted is {self._taken}, not {offset}")
            end = offset + len(data)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WRITE_WAIT_S):
                    while self._taken < end and not self._over:
                        await self._write(memoryview(data)[self._taken - offset :])
            if eof and self._taken >= end and not self._over:
                self._over = self.said_end = True
                self._say_end()
            return Taken(self._taken, self._over)

    async def _write(self, data: memoryview) -> None:
        """Some of it, or waits for room."""
        try:
            self._taken += os.write(self._descriptor, data)
        except BlockingIOError:
            await self._room()
        except OSError:  # nobody reads it any more
            self._over = True

    async def _room(self) -> None:
        loop, descriptor, free = asyncio.get_running_loop(), self._descriptor, asyncio.Event()
        loop.add_writer(descriptor, free.set)
        try:
            await free.wait()
        finally:
            if descriptor == self._descriptor:
                loop.remove_writer(descriptor)

    def close(self) -> None:
        self._over = True
        self._descriptor = _closed(self._descriptor)


def _closed(descriptor: int) -> int:
    """Nobody waits for it any more, whatever it becomes next."""
    if descriptor >= 0:
        loop = asyncio.get_running_loop()
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)
        os.close(descriptor)
    return -1


class Channel:
    """`release` lets go of what is behind the streams, and hears whether all of them had come to
    their ends.

    `signal` is of a process, `size` of its terminal.
    """

    def __init__(
        self,
        outputs: Mapping[str, Output],
        taken_in: Input,
        release: Callable[[bool], None],
        signal: Callable[[int], Awaitable[None]] | None = None,
        size: Callable[[int, int], None] | None = None,
    ) -> None:
        self.outputs = outputs
        self.input = taken_in
        self.signal = signal
        self.size = size
        self.exit_code: int | None = None
        self.detail = ""
        self._release = release
        self.closed = False

    def process_ended(self, exit_code: int, detail: str) -> None:
        self.exit_code, self.detail = exit_code, detail
        for output in self.outputs.values():
            output.process_is_over()

    def close(self) -> None:
        """Once; questions about it that still wait end with their time."""
        if not self.closed:
            self.closed = True
            whole = self.input.said_end and all(output.ended for output in self.outputs.values())
            self.input.close()
            for output in self.outputs.values():
                output.process_is_over()
                output.close()
            self._release(whole)
