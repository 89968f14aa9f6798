"""The lease of the one gateway that sends notifications.

The holder renews it ROUNDS times in LEASE_S. Another gateway takes it when the entry did not
change for LEASE_S by the follower's own clock. The holder counts LEASE_S from before it wrote the
entry, and so stops before anyone can take over: two gateways never send at one time, whatever their
clocks show. Tests: tests/integration/test_notify_lease.py.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Final

from libs.common.errors import Fenced, Unavailable
from libs.common.process.clock import Clock
from libs.common.transport.revisions import Kept, Revisions

LEASE_S: Final = 30.0
ROUNDS: Final = 10
LOOK_S: Final = 0.2
KEY: Final = "leader"

logger = logging.getLogger(__name__)


class SendingLease:
    """One gateway's part of the lease. `changed` is set when this gateway begins to hold it."""

    def __init__(
        self, store: Revisions, clock: Clock, instance: str, lease_s: float = LEASE_S
    ) -> None:
        self.store = store
        self.clock = clock
        self.lease_s = lease_s
        # A restarted gateway is another holder.
        self.own = f"{instance}/{uuid.uuid4().hex}".encode()
        self.until_ns = 0
        self.taken = 0
        self._revision = 0
        self._seen = Kept(b"", -1)
        self._seen_ns = 0

    def holds(self, for_s: float = 0.0) -> bool:
        """Return whether this gateway holds the lease, and still will in `for_s`."""
        return self.clock.boot_ns() + int(for_s * 1e9) < self.until_ns

    async def run(self, is_needed: Callable[[], bool]) -> None:
        """Take and renew the lease for ever, while there is something to send."""
        looked_ns = 0
        while True:
            now = self.clock.boot_ns()
            if not is_needed():
                await self.release()
                looked_ns = 0
            elif now - looked_ns >= self.lease_s / ROUNDS * 1e9:
                looked_ns = now
                await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        """Renew the lease, or take it if it is free."""
        try:
            if self._revision and self.holds():
                await self._write(self._revision)
                return
            await self._follow()
        except Fenced:
            self.until_ns = self._revision = 0
        except Unavailable as error:
            logger.warning("the lease of notifications was not renewed: %s", error)
            self._revision = 0

    async def release(self) -> None:
        """Give the lease back, so that another gateway need not wait for its end."""
        if self._revision and self.holds():
            self.until_ns = 0
            try:
                await self.store.put(KEY, b"", self._revision)
            except (Fenced, Unavailable):
                return

    async def _follow(self) -> None:
        entry = await self.store.get(KEY)
        # The entry may have been written while the store was asked: its time begins now.
        now = self.clock.boot_ns()
        if entry.revision != self._seen.revision:
            self._seen, self._seen_ns = entry, now
        is_own = entry.data == self.own
        is_over = now - self._seen_ns >= self.lease_s * 1e9
        if is_own or not entry.data or is_over:
            await self._write(entry.revision)

    async def _write(self, revision: int) -> None:
        held, sent = self.holds(), self.clock.boot_ns()
        self._revision = await self.store.put(KEY, self.own, revision)
        self.until_ns = sent + int(self.lease_s * 1e9)
        if not held:
            self.taken += 1
            logger.info("this gateway sends the notifications now")
