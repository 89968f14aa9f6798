"""Counts the tokens of images in a chat request by their size in pixels, not by the bytes of their
base64.

Pure. The arithmetic is OpenAI's. An image of low detail counts 85 tokens. Any other image is scaled
down to fit into 2,048 x 2,048 pixels, then until its shorter side is at most 768 pixels. It counts
85 tokens, and 170 for each tile of 512 x 512 pixels.

Width and height are read from the first bytes of a data URL (PNG, GIF, JPEG, WebP). An image with
an address instead, or in another format, counts as the largest. These counts only reserve tokens:
the tenant is charged what the replica counts. Tests: tests/unit/test_openai_images.py.
"""

import binascii
from typing import Final, NamedTuple

import msgspec

from services.api_gateway.intents.fields import UNREADABLE

LOW: Final = 85
TILE: Final = 170
TILE_PIXELS: Final = 512
LONG_MAX: Final = 2_048
SHORT_MAX: Final = 768
LARGEST: Final = LOW + TILE * 8
# How many base64 characters of an image are decoded. The size is in the header, but in a JPEG it
# follows the metadata.
HEAD_CHARS: Final = 256
JPEG_CHARS: Final = 128 << 10
# How many segments of a JPEG are read in search of its size.
SEGMENTS_MAX: Final = 64
# The markers of a JPEG that hold its size: starts of a frame. C4, C8 and CC are other markers.
FRAMES: Final = tuple(marker for marker in range(0xC0, 0xD0) if marker not in (0xC4, 0xC8, 0xCC))


class Images(NamedTuple):
    """The images of a request: their bytes in base64, and the tokens that they count together."""

    body_bytes: int
    tokens: int


NO_IMAGES: Final = Images(0, 0)


class _Image(msgspec.Struct):
    url: str
    detail: str | None = None


class _Part(msgspec.Struct):
    image_url: _Image | str | None = None


class _Message(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"null")


_messages: Final = msgspec.json.Decoder(list[_Message])
_parts: Final = msgspec.json.Decoder(list[_Part])


def images_of(messages: bytes) -> Images:
    """Return the images of a chat's messages.

    If the messages cannot be parsed, return NO_IMAGES; the caller then counts all bytes as text.
    """
    if b'"image_url"' not in messages:
        return NO_IMAGES
    size = tokens = 0
    try:
        contents = [bytes(message.content) for message in _messages.decode(messages)]
        parts = [
            part
            for content in contents
            if content.startswith(b"[")
            for part in _parts.decode(content)
        ]
    except UNREADABLE:
        return NO_IMAGES
    for part in parts:
        image = _Image(part.image_url) if isinstance(part.image_url, str) else part.image_url
        if image is not None:
            size += len(image.url) if image.url.startswith("data:") else 0
            tokens += LOW if image.detail == "low" else tokens_of(*size_of(image.url))
    return Images(size, tokens)


def tokens_of(width: int, height: int) -> int:
    """Return the tokens of an image of this size in pixels; LARGEST if the size is unknown (0)."""
    if width <= 0 or height <= 0:
        return LARGEST
    long, short = max(width, height), min(width, height)
    if long > LONG_MAX:
        long, short = LONG_MAX, max(1, short * LONG_MAX // long)
    if short > SHORT_MAX:
        long, short = long * SHORT_MAX // short, SHORT_MAX
    return LOW + TILE * -(-long // TILE_PIXELS) * -(-short // TILE_PIXELS)


def size_of(url: str) -> tuple[int, int]:
    """Return width and height in pixels; (0, 0) for an address and for an unknown format."""
    head, _, data = url.partition(";base64,")
    if not head.startswith("data:") or not data:
        return 0, 0
    start = _decoded(data[:HEAD_CHARS])
    if start.startswith(b"\x89PNG\r\n\x1a\n"):
        return int.from_bytes(start[16:20]), int.from_bytes(start[20:24])
    if start.startswith((b"GIF87a", b"GIF89a")):
        return int.from_bytes(start[6:8], "little"), int.from_bytes(start[8:10], "little")
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP":
        return _webp_size(start)
    return _jpeg_size(_decoded(data[:JPEG_CHARS])) if start.startswith(b"\xff\xd8") else (0, 0)


def _decoded(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text[: len(text) // 4 * 4])
    except (binascii.Error, ValueError):
        return b""


def _webp_size(data: bytes) -> tuple[int, int]:
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(
        data[28:30], "little"
    ) & 0x3FFF


def _jpeg_size(data: bytes) -> tuple[int, int]:
    at = 2
    for _ in range(SEGMENTS_MAX):
        if data[at : at + 1] != b"\xff" or at + 9 > len(data):
            break
        if data[at + 1] in FRAMES:
            return int.from_bytes(data[at + 7 : at + 9]), int.from_bytes(data[at + 5 : at + 7])
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return 0, 0
