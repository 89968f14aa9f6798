"""Read a job's output by absolute offset, while the supervisor (`pump.py`) writes and rotates it,
or later.

A reader never waits. It opens both segments and uses them only if the index did not change in
between; open files stay readable when they are renamed or removed. Tests:
tests/unit/test_output_segments.py.
"""

import contextlib
import os
from typing import NamedTuple

from services.node_agent.supervisor import records
from services.node_agent.supervisor.pump import INDEX

OPEN_TRIES = 50


class Piece(NamedTuple):
    """Output from `offset` on; `end`: no more will follow."""

    offset: int
    data: bytes
    end: bool


class _Segments(NamedTuple):
    """The open segments (-1: none), and the offsets at which they begin and end."""

    previous: int
    current: int
    first: int
    boundary: int
    last: int


def read(job_dir: str, stream: str, offset: int, max_bytes: int) -> Piece:
    """Return output from `offset`, or from the oldest byte that is still stored.

    Raises FileNotFoundError for an unknown job.
    """
    os.stat(job_dir)
    ended = (
        records.read_exit(job_dir) is not None
    )  # read first, so that the output read after an end is complete
    segments = _open_segments(job_dir, stream)
    try:
        begin = min(max(offset, segments.first), segments.last)
        data = _bytes(segments, begin, max_bytes)
        return Piece(begin, data, ended and begin + len(data) >= segments.last)
    finally:
        _close(segments)


def tail(job_dir: str, stream: str, max_bytes: int) -> Piece:
    """Return the last bytes stored so far."""
    segments = _open_segments(job_dir, stream)
    _close(segments)
    return read(job_dir, stream, max(0, segments.last - max_bytes), max_bytes)


def written_bytes(job_dir: str, stream: str) -> int:
    """Return how many bytes were stored so far, kept or not; 0 for an unknown job."""
    segments = _open_segments(job_dir, stream)
    _close(segments)
    return segments.last


def _bytes(segments: _Segments, begin: int, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    if segments.previous >= 0 and begin < segments.boundary:
        wanted = min(max_bytes, segments.boundary - begin)
        parts.append(os.pread(segments.previous, wanted, begin - segments.first))
        max_bytes -= wanted
        begin = segments.boundary
    if segments.current >= 0 and max_bytes > 0:
        parts.append(os.pread(segments.current, max_bytes, begin - segments.boundary))
    return b"".join(parts)


def _open_segments(job_dir: str, stream: str) -> _Segments:
    for _ in range(OPEN_TRIES):
        before = _index(job_dir, stream)
        current, previous = _open(f"{job_dir}/{stream}.log"), _open(f"{job_dir}/{stream}.log.1")
        if before[0] % 2 == 0 and _index(job_dir, stream) == before:
            return _placed(previous, current, before[1])
        for descriptor in (current, previous):
            if descriptor >= 0:
                os.close(descriptor)
    return _open_half_rotated(job_dir, stream)


def _open_half_rotated(job_dir: str, stream: str) -> _Segments:
    """Open the segments after a supervisor died in the middle of a rotation.

    The index already has the boundary; a current segment that still holds bytes ends there.
    """
    boundary = _index(job_dir, stream)[1]
    current, previous = _open(f"{job_dir}/{stream}.log"), _open(f"{job_dir}/{stream}.log.1")
    return _placed(previous, current, boundary - _size(current))


def _placed(previous: int, current: int, boundary: int) -> _Segments:
    return _Segments(
        previous,
        current,
        first=boundary - _size(previous),
        boundary=boundary,
        last=boundary + _size(current),
    )


def _index(job_dir: str, stream: str) -> tuple[int, int]:
    try:
        with open(f"{job_dir}/{stream}.index", "rb") as file:
            raw = file.read(INDEX.size)
    except FileNotFoundError:
        return (0, 0)
    return (
        INDEX.unpack(raw) if len(raw) == INDEX.size else (0, 0)
    )  # created, and nothing renamed yet


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def _size(descriptor: int) -> int:
    return os.fstat(descriptor).st_size if descriptor >= 0 else 0


def _close(segments: _Segments) -> None:
    for descriptor in (segments.previous, segments.current):
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
