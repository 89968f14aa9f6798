"""The bytes that calls keep in this process, bounded by tenant and over all calls.

Messages that wait, answers that are kept whole, and events that are not whole yet are counted. One
tenant may hold a part of what is free, as with open calls. Tests: tests/unit/test_rpc_held_bytes.py
and tests/attack/test_rpc_bytes.py.
"""

from typing import Final

from libs.common.open_share import BUSY_S, OpenShare
from services.api_gateway.problems import Problem

# A whole answer is there three times at the end: as it came, decoded, and as a message.
WHOLE_TIMES: Final = 3


class HeldBytes:
    """The bytes that one call keeps. Without a share nothing is counted: calls without a key."""

    def __init__(self, share: OpenShare | None = None, tenant: str = "") -> None:
        self.share = share
        self.tenant = tenant
        self.size = 0
        self.kept = 0

    def take(self, size: int) -> None:
        """Count bytes that are kept from now on. Raises Problem 429 if there is no room."""
        if self.share is None or not size:
            return
        if self.share.take(self.tenant, size):
            text = (
                f"the calls of tenant {self.tenant} keep as many bytes at this gateway as those "
                f"of one tenant may now ({self.share.most} for all): read answers faster, make "
                "fewer calls at once, ask for less, or use another gateway"
            )
            raise Problem(429, text, retry_after_s=BUSY_S)
        self.size += size

    def give_back(self, size: int) -> None:
        """Count bytes no longer."""
        if self.share is not None and size:
            self.share.give_back(self.tenant, size)
            self.size -= size

    def keep(self, size: int) -> None:
        """Count `size` bytes, instead of those of the last call, for what is not whole yet.

        Raises Problem 429 if there is no room.
        """
        if size > self.kept:
            self.take(size - self.kept)
        else:
            self.give_back(self.kept - size)
        self.kept = size

    def close(self) -> None:
        """Give everything back. What is taken later, by an app that ends, is not counted."""
        self.give_back(self.size)
        self.share = None
