"""The body of a request, bounded in bytes and in time, and counted among those of its tenant.

Tests: tests/integration/test_gateway_slow_bodies.py and tests/attack/test_large_bodies.py.
"""

import asyncio
import re
from typing import Final

from starlette.types import Message, Receive

from libs.common.open_share import OpenShare
from services.api_gateway.http.edge_problems import too_much
from services.api_gateway.problems import Problem

# A request that frees resources must pass when its tenant is at its share, so the first bytes of
# its body do not count. So must the renewal of a lock, without which its holder loses its work.
# Each open connection needs more memory than these bytes.
UNCOUNTED_BYTES: Final = 4 << 10
FREEING: Final = re.compile(r"/v1/(jobs/[^/]+/(cancel|kill)|locks/[^/]+/(release|renew))")


class BoundedBody:
    """A request body that is bounded in bytes and, if `within_s` is given, in time.

    Its bytes beyond the first `uncounted` count for `tenant` in `share` until `close`. Without a
    share they do not count. After the body `receive` waits for the client's disconnect.
    """

    def __init__(
        self,
        receive: Receive,
        bytes_max: int,
        within_s: float | None,
        share: OpenShare | None = None,
        tenant: str = "",
        uncounted: int = 0,
    ) -> None:
        self.inner = receive
        self.share = share
        self.tenant = tenant
        self.uncounted = uncounted
        self.counted = 0
        self.bytes_max = bytes_max
        self.bytes = 0
        self.within_s = within_s
        self.until_s = None if within_s is None else asyncio.get_running_loop().time() + within_s
        self.whole = False

    async def receive(self) -> Message:
        if self.whole:
            return await self.inner()
        try:
            async with asyncio.timeout_at(self.until_s):
                message = await self.inner()
        except TimeoutError as error:
            raise Problem(
                408, f"the request body was not complete after {self.within_s:g} s: send it faster"
            ) from error
        self.whole = not message.get("more_body")
        if size := len(message.get("body", b"")):
            self._count(size)
        return message

    def _count(self, size: int) -> None:
        """Count bytes that came. Raises Problem 413, 429 or 503."""
        self.bytes += size
        if self.bytes > self.bytes_max:
            raise too_large(self.bytes_max)
        more = max(0, self.bytes - self.uncounted) - self.counted
        if self.share is None or not more:
            return
        if refused := self.share.take(self.tenant, more):
            raise too_much(self.tenant, refused)
        self.counted += more

    def close(self) -> None:
        """Give the counted bytes back to the share."""
        if self.share is not None and self.counted:
            self.share.give_back(self.tenant, self.counted)
            self.counted = 0


def uncounted_bytes(method: str, path: str) -> int:
    """Return how many bytes of a request's body do not count.

    None, unless the request frees resources or renews a lock.
    """
    frees = method == "DELETE" or (method == "POST" and FREEING.fullmatch(path) is not None)
    return UNCOUNTED_BYTES if frees else 0


def too_large(bytes_max: int) -> Problem:
    """Return the problem of a body over its bound."""
    return Problem(413, f"the request body is larger than {bytes_max} bytes: send less at once")
