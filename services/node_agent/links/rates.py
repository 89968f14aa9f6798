"""A token bucket for the bytes of each tenant. Tests: tests/unit/test_link_rates.py."""

import threading
from typing import Final

# Tenants that are remembered; one that was forgotten begins with a full bucket.
TENANTS_MAX: Final = 1_024
SECOND_NS: Final = 1_000_000_000


class Rates:
    """Bytes per second of each tenant; 0: no bound. A bucket holds one second; safe for threads."""

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_ns: dict[str, int] = {}

    def wait_ns(self, tenant: str, size: int, now_ns: int) -> int:
        """Take `size` bytes out of the bucket; return how long to wait before sending them."""
        if not self.bytes_per_s:
            return 0
        with self._lock:
            # The time at which the bucket is full again; its debt is what lies after now.
            full_ns = max(self._free_ns.pop(tenant, 0), now_ns)
            full_ns += size * SECOND_NS // self.bytes_per_s
            self._free_ns[tenant] = full_ns
            if len(self._free_ns) > TENANTS_MAX:
                del self._free_ns[next(iter(self._free_ns))]
            return max(0, full_ns - now_ns - SECOND_NS)
