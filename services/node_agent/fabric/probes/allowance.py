"""The time that an agent may spend on probes, whatever is ordered.

Pure. A probe costs the time that it took. SHARE of all time comes back, up to SAVED_NS. Tests:
tests/unit/test_probe_frames.py.
"""

from typing import Final

# A tournament of 64 nodes takes about 20 s. Over minutes, probes take at most a quarter of the
# time.
SAVED_NS: Final = 60_000_000_000
SHARE_PARTS: Final = 4


class Allowance:
    """The time that is left for probes, on the boot clock; `saved_ns` at most."""

    def __init__(self, now_ns: int, saved_ns: int = SAVED_NS) -> None:
        self.left_ns = self.saved_ns = saved_ns
        self.seen_ns = now_ns

    def may_begin(self, now_ns: int) -> bool:
        """Return whether a probe may begin now."""
        self.left_ns = min(self.saved_ns, self.left_ns + (now_ns - self.seen_ns) // SHARE_PARTS)
        self.seen_ns = now_ns
        return self.left_ns > 0

    def spend(self, took_ns: int) -> None:
        self.left_ns -= took_ns
