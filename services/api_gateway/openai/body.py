"""Reads a request's whole body, within a bound and a time.

The whole body is needed to choose a replica. `Kept` bounds the bodies, whole answers and unfinished
events of all requests that are open.
"""

import asyncio
from typing import Final

from starlette.types import Message, Receive, Scope

from libs.common.open_share import BUSY_S, TENANT_FULL, OpenShare
from services.api_gateway.openai.errors import ApiError

# Bytes that a stream may hold uncounted.
WAITING_FREE: Final = 64 << 10


class Kept:
    """The bytes of one request's body and answer, among those of all tenants, until `close`."""

    def __init__(self, bodies: OpenShare, tenant: str) -> None:
        self.bodies = bodies
        self.tenant = tenant
        self.size = 0
        self.waiting = 0

    def add(self, size: int) -> None:
        """Count bytes that came.

        Raises ApiError: 429 if the tenant's requests need too much, 503 if those of all do.
        """
        if refused := self.bodies.take(self.tenant, size):
            raise _too_much(self.tenant, refused)
        self.size += size

    def keep(self, size: int) -> None:
        """Count the bytes that a stream holds now, instead of those that it held at the last call.

        Events of up to WAITING_FREE bytes do not count: the rest of them comes in a moment. Raises
        as `add`.
        """
        size = size if size > WAITING_FREE else 0
        if size > self.waiting:
            self.add(size - self.waiting)
        elif size < self.waiting:
            self.bodies.give_back(self.tenant, self.waiting - size)
            self.size -= self.waiting - size
        self.waiting = size

    def close(self) -> None:
        """Count the bytes no longer."""
        self.bodies.give_back(self.tenant, self.size)
        self.size = self.waiting = 0


def length_of(scope: Scope) -> int | None:
    """Return the length that the request's head gives; None if it gives none."""
    length: bytes = scope["header"].get(b"content-length", b"")
    return int(length) if length.isdigit() else None


async def read_body(
    scope: Scope, receive: Receive, bytes_max: int, within_s: float, kept: Kept
) -> bytes | None:
    """Return the whole body; None if the client disconnected.

    Raises ApiError 413 and 408, and those of `kept`.
    """
    if (length_of(scope) or 0) > bytes_max:
        raise _too_large(bytes_max)
    if "is_complete" in scope:  # the connection has all of it: nothing is waited for
        return await _gathered(await receive(), receive, bytes_max, kept)
    try:
        async with asyncio.timeout(within_s):
            return await _gathered(await receive(), receive, bytes_max, kept)
    except TimeoutError as error:
        raise ApiError(
            408,
            f"the request body was not complete after {within_s:g} s: send it faster",
            "timeout",
        ) from error


async def _gathered(message: Message, receive: Receive, bytes_max: int, kept: Kept) -> bytes | None:
    if message["type"] == "http.request" and not message.get("more_body"):
        if len(message["body"]) > bytes_max:
            raise _too_large(bytes_max)
        kept.add(len(message["body"]))
        return bytes(message["body"])
    body = bytearray()
    while message["type"] != "http.disconnect":
        piece = message.get("body", b"")
        body += piece
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        kept.add(len(piece))
        if not message.get("more_body"):
            return bytes(body)
        message = await receive()
    return None


def _too_large(bytes_max: int) -> ApiError:
    return ApiError(
        413,
        f"the request body is larger than {bytes_max} bytes: send less, or raise "
        "MUSTER_MODEL_BODY_BYTES",
        "request_too_large",
    )


def _too_much(tenant: str, refused: str) -> ApiError:
    if refused == TENANT_FULL:
        text = (
            f"the bodies and answers of tenant {tenant}'s open requests need most of the memory "
            "that this gateway has left for them: read the answers, wait until some requests have "
            "ended, or send less at once"
        )
        return ApiError(429, text, "overloaded", retry_after_s=BUSY_S)
    text = (
        "the bodies and answers of all open requests need all memory that this gateway has for "
        "them: try again in a moment, or raise MUSTER_MODEL_BODIES_BYTES"
    )
    return ApiError(503, text, "overloaded", retry_after_s=BUSY_S)
