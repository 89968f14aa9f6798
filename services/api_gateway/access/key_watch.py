"""Ends the open streams, channels and WebSockets of a key that is not accepted any more.

The gateway checks a key or session when its request begins. Followed streams, channels into jobs
and WebSockets stay open, so they check it again every MUSTER_KEEPALIVE_MS. Tests:
tests/integration/test_revoked_streams.py.
"""

import asyncio
from typing import TYPE_CHECKING

from services.api_gateway.access.roles import Principal

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway


class KeyRefused(Exception):
    """The key is not accepted any more, or stands for another principal now."""


class KeyCheck:
    """Checks the key of one open stream, at most every MUSTER_KEEPALIVE_MS."""

    def __init__(self, gateway: "Gateway", key: str, principal: Principal) -> None:
        self.gateway = gateway
        self.key = key
        self.principal = principal
        self.next_ns = 0

    def check(self) -> None:
        """Raise KeyRefused if a check is due and the key is not accepted any more."""
        now_ns = self.gateway.clock.boot_ns()
        if now_ns < self.next_ns:
            return
        self.next_ns = now_ns + self.gateway.settings.keepalive_ms * 1_000_000
        if why := why_refused(self.gateway, self.key, self.principal):
            raise KeyRefused(why)


def why_refused(gateway: "Gateway", key: str, principal: Principal) -> str:
    """Return why the key does not stand for this principal any more; empty if it does."""
    found, why = gateway.keys.principal(key, gateway.cluster, gateway.clock.wall_ns())
    if found == principal:
        return ""
    return f"{why or 'the key has another role or tenant now'}: sign in again"


async def until_refused(gateway: "Gateway", key: str, principal: Principal) -> str:
    """Wait until the key does not stand for this principal any more, and return why."""
    while not (why := why_refused(gateway, key, principal)):
        await asyncio.sleep(gateway.settings.keepalive_ms / 1_000)
    return why
