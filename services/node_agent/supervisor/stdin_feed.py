"""The job's standard input, fed from a bounded buffer by offset, so that repeated requests are
harmless.
"""

import os
from collections.abc import Callable

from services.node_agent.machine.poll_loop import WRITE, PollLoop

MAX_BUFFER_BYTES = 256 * 1024
WRITE_BYTES = 65_536


class StdinFeed:
    """The input of one job.

    `next_offset` is the first byte not taken yet. `closed`: the stream is closed. `over`: no more
    bytes are wanted; the last ones may still be in the buffer.
    """

    def __init__(self, loop: PollLoop, descriptor: int, drained: Callable[[], None]) -> None:
        self.next_offset = 0
        self.closed = descriptor < 0
        self._loop = loop
        self._descriptor = descriptor
        self._drained = drained
        self._buffer = bytearray()
        self._ending = False

    @property
    def over(self) -> bool:
        return self.closed or self._ending

    def offer(self, offset: int, data: bytes, eof: bool) -> bool:
        """Take new bytes as far as there is room; return False if not all were taken: offer them
        again later.
        """
        assert offset <= self.next_offset, "the caller has refused gaps"
        end = offset + len(data)
        while not self.over:
            taken = data[self.next_offset - offset :][: MAX_BUFFER_BYTES - len(self._buffer)]
            self._buffer += taken
            self.next_offset += len(taken)
            self._ending = eof and self.next_offset == end
            self._write()
            if (
                self.next_offset >= end or self._buffer
            ):  # what is buffered still will call again once it is written
                break
        return self.over or self.next_offset >= end

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.unwatch(self._descriptor)
            os.close(self._descriptor)
        self._descriptor = -1
        self.closed = True
        self._buffer.clear()

    def _write(self) -> None:
        """Write until the pipe is full; the loop then calls again."""
        while self._buffer and not self.closed:
            try:
                written = os.write(self._descriptor, self._buffer[:WRITE_BYTES])
            except BlockingIOError:
                self._loop.watch(self._descriptor, WRITE, self._resume)
                return
            except BrokenPipeError:
                self.close()
                return
            del self._buffer[:written]
        self._loop.unwatch(self._descriptor)
        if self._ending:
            self.close()

    def _resume(self) -> None:
        self._write()
        self._drained()
