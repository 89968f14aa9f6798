"""Reads a request's whole body, within a bound and a time.

The whole body is needed to choose a replica.
"""

import asyncio

from starlette.types import Message, Receive, Scope

from services.api_gateway.openai.errors import ApiError


def length_of(scope: Scope) -> int | None:
    """Return the length that the request's head gives; None if it gives none."""
    length: bytes = scope["header"].get(b"content-length", b"")
    return int(length) if length.isdigit() else None


async def read_body(
    scope: Scope, receive: Receive, bytes_max: int, within_s: float
) -> bytes | None:
    """Return the whole body; None if the client disconnected. Raises ApiError 413 and 408."""
    if (length_of(scope) or 0) > bytes_max:
        raise _too_large(bytes_max)
    if "is_complete" in scope:  # the connection has all of it: nothing is waited for
        return await _gathered(await receive(), receive, bytes_max)
    try:
        async with asyncio.timeout(within_s):
            return await _gathered(await receive(), receive, bytes_max)
    except TimeoutError as error:
        raise ApiError(
            408,
            f"the request body was not complete after {within_s:g} s: send it faster",
            "timeout",
        ) from error


async def _gathered(message: Message, receive: Receive, bytes_max: int) -> bytes | None:
    if message["type"] == "http.request" and not message.get("more_body"):
        if len(message["body"]) > bytes_max:
            raise _too_large(bytes_max)
        return bytes(message["body"])
    body = bytearray()
    while message["type"] != "http.disconnect":
        body += message.get("body", b"")
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
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
