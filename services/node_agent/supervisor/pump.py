"""The copy of one output stream from its pipe to disk, in two rotating segments; a bad disk never
stops the job.

Offsets count the bytes stored since the start. `NAME.log` is the current segment, `NAME.log.1` the
one before. `NAME.index` (generation, then the offset at which the current segment begins) exists
after the first rotation. The reader is `output.py`.
"""

import os
import struct

CHUNK_BYTES = 65_536
MIN_SEGMENT_BYTES = 4_096
DRAIN_READS = 64
INDEX = struct.Struct("<QQ")


class Pump:
    """One stream. `stored` and `dropped` count bytes; `fd` is -1 at the end of the stream.

    A `heading` is stored before the next byte, on a line of its own. Works in the current
    directory.
    """

    def __init__(self, fd: int, stream: str, limit_bytes: int) -> None:
        self.fd = fd
        self.stored = 0
        self.dropped = 0
        self.heading = b""
        self._in_line = False
        self._log = f"{stream}.log"
        self._index = f"{stream}.index"
        self._segment_bytes = max(limit_bytes // 2, MIN_SEGMENT_BYTES)
        self._in_segment = 0
        self._generation = 0
        self._file = -1

    def pump(self) -> bool:
        """Copy one read; return False if the stream has ended or is empty for now."""
        try:
            data = os.read(self.fd, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        if self.heading:
            data = (b"\n" if self._in_line else b"") + self.heading + data
            self.heading = b""
        self._in_line = not data.endswith(b"\n")
        self._store(memoryview(data))
        return True

    def drain(self) -> None:
        """Copy what is left in the pipe after the job's end, and close it."""
        self.take_rest()
        self.close()

    def take_rest(self) -> None:
        """Copy what is in the pipe, bounded: another process may hold the other end."""
        for _ in range(DRAIN_READS):
            if self.fd < 0 or not self.pump():
                break

    def close(self) -> None:
        for descriptor in (self.fd, self._file):
            if descriptor >= 0:
                os.close(descriptor)
        self.fd = self._file = -1

    def _store(self, data: memoryview) -> None:
        """Store data. A failure of the disk (full, quota, I/O error) loses only these bytes."""
        while data:
            try:
                if self._in_segment >= self._segment_bytes:
                    self._rotate()
                written = os.write(self._current(), data[: self._segment_bytes - self._in_segment])
            except OSError:
                self.dropped += len(data)
                return
            self.stored += written
            self._in_segment += written
            data = data[written:]

    def _current(self) -> int:
        if self._file < 0:
            self._file = os.open(
                self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
            )
        return self._file

    def _rotate(self) -> None:
        """Rotate the segments. An odd generation tells readers that the rename is under way."""
        self._generation |= 1
        self._write_index()
        os.rename(self._log, f"{self._log}.1")
        os.close(self._file)
        self._file = -1
        self._in_segment = 0
        self._generation += 1
        self._write_index()

    def _write_index(self) -> None:
        descriptor = os.open(self._index, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(descriptor, INDEX.pack(self._generation, self.stored), 0)
        finally:
            os.close(descriptor)
