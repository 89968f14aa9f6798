"""Feeds a job's standard input from a bounded buffer, by offset, so that a repeated request changes
nothing.
"""

import os
from collections.abc import Callable

from services.node_agent.machine.poll_loop import WRITE, PollLoop

MAX_BUFFER_BYTES = 256 * 1024
WRITE_BYTES = 65_536


class StdinFeed:
    """`next_offset` is the first byte not taken yet.

    `closed`: the stream is; `over`: no byte is wanted any more, the last ones may still be on their
    way.
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
        """Takes what is new and what there is room for.

        False: not all was taken; offer the same again once drained.
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
        """Until the pipe is full; then the loop calls again."""
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
