"""The body of a request, bounded in bytes and in time.

Tests: tests/integration/test_gateway_slow_bodies.py.
"""

import asyncio

from starlette.types import Message, Receive

from services.api_gateway.problems import Problem


class BoundedBody:
    """A request body that is bounded in bytes and, if `within_s` is given, in time.

    After the body `receive` waits for the client's disconnect.
    """

    def __init__(self, receive: Receive, bytes_max: int, within_s: float | None) -> None:
        self.inner = receive
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
        self.bytes += len(message.get("body", b""))
        if self.bytes > self.bytes_max:
            raise too_large(self.bytes_max)
        return message


def too_large(bytes_max: int) -> Problem:
    """Return the problem of a body over its bound."""
    return Problem(413, f"the request body is larger than {bytes_max} bytes: send less at once")
