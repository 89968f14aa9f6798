"""Decide whether a payload is worth compressing, and compress it with zstd where that is installed.

`pays` is the rule: the time that fewer bytes save on this link must exceed the time to compress
and expand them. A probe of the data gives the ratio. Tests: tests/unit/test_transport_frames.py.
"""

import threading
from typing import Final

THRESHOLD_BYTES: Final = 64 << 10
# Three pieces of the payload are compressed to see whether the rest is worth it.
PROBE_BYTES: Final = 4 << 10
LEVEL: Final = 1
# zstd at level 1 on one core, compressing and expanding together.
ZSTD_BYTES_PER_S: Final = 300 << 20
# A payload that shrinks less is sent as it is.
RATIO_MAX: Final = 0.9


def pays(size: int, ratio: float, link_bytes_per_s: float) -> bool:
    """Return whether compressing `size` bytes to `ratio` of it saves time on this link."""
    if size < THRESHOLD_BYTES or ratio > RATIO_MAX or link_bytes_per_s <= 0:
        return False
    return size * (1 - ratio) / link_bytes_per_s > size / ZSTD_BYTES_PER_S


class Zstd:
    """Compressor and decompressor of one link."""

    def __init__(self) -> None:
        import zstandard

        self._compressor = zstandard.ZstdCompressor(level=LEVEL)
        self._decompressor = zstandard.ZstdDecompressor()
        self._error = zstandard.ZstdError
        # A compressor is not safe for threads.
        self._lock = threading.Lock()

    def probe(self, data: memoryview) -> float:
        """Return the ratio at which samples of the data compress."""
        last = len(data) - PROBE_BYTES
        samples = [data[at : at + PROBE_BYTES] for at in (0, last // 2, last)]
        packed = sum(len(self.compress(sample)) for sample in samples)
        return packed / (len(samples) * PROBE_BYTES)

    def compress(self, data: memoryview) -> bytes:
        """Return the compressed bytes."""
        with self._lock:
            return self._compressor.compress(data)

    def expand(self, data: memoryview, into: memoryview) -> None:
        """Write the original bytes to `into`, which has their size. Raises ValueError."""
        found = 0
        try:
            with self._decompressor.stream_reader(data) as reader:
                while found < len(into) and (count := reader.readinto(into[found:])):
                    found += count
                more = reader.read(1)
        except self._error as error:
            raise ValueError(f"not zstd: {error}") from None
        if more or found != len(into):
            raise ValueError(f"zstd data do not have the {len(into)} bytes that are announced")


def zstd() -> Zstd | None:
    """Return a Zstd, or None where no zstd is installed."""
    try:
        return Zstd()
    except ImportError:
        return None
