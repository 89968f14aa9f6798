"""Finds where the last N lines of a stream begin, by reading longer and longer ends of it.

The gateway answers `tail_bytes` with the end of the stream, and gives its first byte's offset in
OFFSET_HEADER.
"""

from typing import Any, Final

from libs.cli.gateway import job_path, opened
from libs.client.profile import Profile

TAIL_BYTES: Final = 65_536
TAIL_BYTES_MAX: Final = 64 << 20
GROWTH: Final = 8
OFFSET_HEADER: Final = "X-Muster-Offset"
SOURCE_HEADER: Final = "X-Muster-Output"


def tail_offset(profile: Profile, job_id: str, whose: dict[str, Any], lines: int) -> int:
    """Return the offset of the last `lines` lines of a stream, or 0 if there are fewer.

    `whose` holds stream, rank and attempt.
    """
    size = TAIL_BYTES
    while True:
        begin, data = _end_of(profile, job_id, whose, size)
        offset = begins_at(data, lines)
        if offset is not None:
            return begin + offset
        if begin == 0 or size >= TAIL_BYTES_MAX:
            return begin
        size = min(TAIL_BYTES_MAX, size * GROWTH)


def begins_at(data: bytes, lines: int) -> int | None:
    """Return where the last `lines` lines begin in `data`, or None if they begin before it.

    An unfinished line counts.
    """
    place = len(data) - 1 if data.endswith(b"\n") else len(data)
    if lines == 0:
        return len(data)
    for _ in range(lines):
        place = data.rfind(b"\n", 0, place)
        if place < 0:
            return None
    return place + 1


def _end_of(profile: Profile, job_id: str, whose: dict[str, Any], size: int) -> tuple[int, bytes]:
    with opened(profile, job_path(job_id, "output"), {**whose, "tail_bytes": size}) as answer:
        data = b"".join(answer.pieces())
        return int(answer.headers.get(OFFSET_HEADER) or 0), data
