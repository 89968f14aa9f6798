"""Reads the answers of replicas: a whole one within its bounds, and the pieces of a stream.

Tests: tests/integration/test_openai_requests.py and test_openai_failures.py,
tests/attack/test_unread_answers.py.
"""

from typing import Final

import aiohttp

from services.api_gateway.openai.body import Kept
from services.api_gateway.openai.errors import ApiError
from services.api_gateway.openai.events import Events

# The code of the error for an answer over its bound.
ANSWER_TOO_LARGE: Final = "answer_too_large"


async def whole(content: aiohttp.StreamReader, bytes_max: int, kept: Kept | None) -> bytes:
    """Return a whole answer. Raises ApiError 502 if it is too large, and those of `kept`."""
    pieces, size = [], 0
    while piece := await content.readany():
        pieces.append(piece)
        size += len(piece)
        if size > bytes_max:
            raise too_large(bytes_max)
        if kept is not None:
            kept.add(len(piece))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def too_large(bytes_max: int) -> ApiError:
    """Return the error for an answer over its bound."""
    text = (
        f"the model's answer is larger than {bytes_max} bytes: request less, or raise "
        "MUSTER_MODEL_ANSWER_BYTES"
    )
    return ApiError(502, text, ANSWER_TOO_LARGE)


async def next_piece(content: aiohttp.StreamReader, events: Events) -> bytes:
    """Return the next bytes of a stream, empty at its end.

    After [DONE] nothing can be missing, so a broken connection counts as the end then.
    """
    try:
        return await content.readany()
    except (aiohttp.ClientError, OSError):
        if not events.done:
            raise
        return b""
