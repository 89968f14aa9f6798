"""The node's end of one channel into a job: it reads output and writes input by byte offset.

Output is read only on request. The last piece of each stream is kept until the gateway asks for the
next one, so that the gateway can repeat a request whose answer was lost. Unread output waits in the
kernel's buffer, unwritten input at the gateway. So a channel holds at most CHUNK_BYTES per
stream. `channels.py` opens channels. Tests: tests/integration/test_channels.py.
"""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from libs.common.errors import Refused
from libs.common.messages.channel_messages import CHUNK_BYTES
from services.node_agent.directories.protocol import Piece, Taken

# A write waits this long for room in a full pipe. The gateway then sends the rest again.
WRITE_WAIT_S: Final = 5.0


class Output:
    """One output stream.

    `ended`: no more output can come. `waits_for_end`: the stream reports its end only after the
    process has ended, so that the exit code travels with it.
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
        """Return the output from `offset` on; wait up to `wait_s` if there is none yet.

        Raises Refused if the offset is neither the next one nor that of the kept piece, and if the
        job reset the connection.
        """
        async with self._turn:
            if offset != self._offset:
                if offset != self._offset - len(self._kept):
                    raise Refused(
                        f"output from byte {offset} on is not available: the next byte is "
                        f"{self._offset}"
                    )
                return Piece(offset, self._kept, False)
            self._kept = b""
            data = self._take(max_bytes)
            if data is None and await self._wait_for_data(wait_s):
                data = self._take(max_bytes)
            self._kept = data or b""
            self._offset += len(self._kept)
            return Piece(offset, self._kept, data == b"")

    def process_is_over(self) -> None:
        """Stop waiting for output: all that the process wrote is in the kernel's buffer."""
        self._process_over = True
        self._wake.set()

    def close(self) -> None:
        self.descriptor = _closed(self.descriptor)

    def _take(self, max_bytes: int) -> bytes | None:
        """Read what is available: empty bytes at the end, None if there is nothing yet."""
        data = b""
        if self.descriptor >= 0:
            try:
                data = os.read(self.descriptor, min(max_bytes, CHUNK_BYTES))
            except BlockingIOError:
                return b"" if self._process_over else None
            except ConnectionError as error:
                raise Refused("the job reset the connection") from error
            except OSError:  # a terminal that no process has open any more
                data = b""
        if data:
            return data
        self.ended = True
        self.close()
        return None if self._waits_for_end and not self._process_over else b""

    async def _wait_for_data(self, wait_s: float) -> bool:
        """Wait until the descriptor is readable or the process is over; False on a timeout."""
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
    """The input of a channel.

    `end_input` tells the reader that no more input comes; by default it closes the descriptor.
    """

    def __init__(self, descriptor: int, end_input: Callable[[], None] | None = None) -> None:
        self._descriptor = descriptor
        self._end_input = end_input or self.close
        self._taken = 0
        self.is_ended = False
        self._over = descriptor < 0
        self._turn = asyncio.Lock()
        if descriptor >= 0:
            os.set_blocking(descriptor, False)

    async def write(self, offset: int, data: bytes, eof: bool) -> Taken:
        """Write as much as finds room within WRITE_WAIT_S. Raises Refused for a gap."""
        async with self._turn:
            if offset > self._taken:
                raise Refused(
                    f"input from byte {offset} on leaves a gap: send it from byte {self._taken} on"
                )
            end = offset + len(data)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WRITE_WAIT_S):
                    while self._taken < end and not self._over:
                        await self._write(memoryview(data)[self._taken - offset :])
            if eof and self._taken >= end and not self._over:
                self._over = self.is_ended = True
                self._end_input()
            return Taken(self._taken, self._over)

    async def _write(self, data: memoryview) -> None:
        """Write some of the data, or wait for room."""
        try:
            self._taken += os.write(self._descriptor, data)
        except BlockingIOError:
            await self._room()
        except OSError:  # no process reads it any more
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
    """Close a descriptor; first the event loop forgets it, because its number may be reused."""
    if descriptor >= 0:
        loop = asyncio.get_running_loop()
        loop.remove_reader(descriptor)
        loop.remove_writer(descriptor)
        os.close(descriptor)
    return -1


class Channel:
    """The streams of one channel, with the process or connection behind them.

    `release` closes that process or connection; its argument says whether all streams had ended.
    `signal` sends a signal to the process, `size` sets the size of its terminal.
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
        """Close the channel; a repetition does nothing. Requests that still wait time out."""
        if not self.closed:
            self.closed = True
            whole = self.input.is_ended and all(output.ended for output in self.outputs.values())
            self.input.close()
            for output in self.outputs.values():
                output.process_is_over()
                output.close()
            self._release(whole)
