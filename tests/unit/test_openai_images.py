"""An image counts by its size class; what cannot be read counts as the largest, and never by the
bytes of its base64.
"""

import base64
import json
import zlib

import pytest

from services.api_gateway.openai import request
from services.api_gateway.openai.images import (
    HEAD_CHARS,
    LARGEST,
    LOW,
    NO_IMAGES,
    images_of,
    size_of,
    tokens_of,
)
from services.api_gateway.openai.routes import CHAT, EMBEDDINGS

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (1_024).to_bytes(4) + (768).to_bytes(4) + b"\x08\x02\0\0\0"
GIF = b"GIF89a" + (320).to_bytes(2, "little") + (200).to_bytes(2, "little") + b"\xf7\0\0"
FRAME = b"\xff\xc2\0\x11\x08" + (1_080).to_bytes(2) + (1_920).to_bytes(2) + b"\x03\x01\x22\0"
EXIF = b"\xff\xe1" + (2 + 5_000).to_bytes(2) + b"\xff\xc0" * 2_500
JPEG = b"\xff\xd8" + EXIF + FRAME
WEBP_X = (
    b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0"
    + (639).to_bytes(3, "little")
    + (479).to_bytes(3, "little")
)
WEBP_L = b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0\x2f" + (639 | 479 << 14).to_bytes(4, "little")
WEBP = (
    b"RIFF\0\0\0\0WEBPVP8 \0\0\0\0\0\0\0\x9d\x01\x2a"
    + (640).to_bytes(2, "little")
    + (480).to_bytes(2, "little")
)


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data + bytes(64)).decode()}"


def chat(*parts: object) -> bytes:
    return json.dumps(
        [{"role": "system", "content": "text"}, {"role": "user", "content": list(parts)}]
    ).encode()


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (PNG, (1_024, 768)),
        (GIF, (320, 200)),
        (JPEG, (1_920, 1_080)),
        (WEBP_X, (640, 480)),
        (WEBP_L, (640, 480)),
        (WEBP, (640, 480)),
    ],
    ids=["png", "gif", "jpeg", "webp", "webp lossless", "webp lossy"],
)
def test_the_size_is_read_from_the_header(data: bytes, size: tuple[int, int]) -> None:
    assert size_of(url(data)) == size


@pytest.mark.parametrize(
    "given",
    [
        "https://example.org/cat.png",
        "data:image/png;base64,",
        "data:image/png;base64,****",
        "data:image/png;base64,A\u00e9AA",
        "data:image/png,plain",
        url(b"BM" + bytes(60)),
        url(b"\xff\xd8" + b"\xff\xe1\xff\xff"),
        url(b"\xff\xd8" + b"\xff\xe1\0\0" * 500),
        url(b"\xff\xd8" + b"\xff\xe1\0\2" * 500),
        url(b"\xff\xd8nonsense"),
        url(b"\x89PNG\r\n\x1a\n"),
    ],
)
def test_an_image_without_a_readable_size_counts_as_the_largest(given: str) -> None:
    assert tokens_of(*size_of(given)) == LARGEST


@pytest.mark.parametrize(
    ("size", "tokens"),
    [
        ((1, 1), LOW + 170),
        ((512, 512), LOW + 170),
        ((513, 512), LOW + 2 * 170),
        ((1_024, 1_024), LOW + 4 * 170),
        ((2_048, 4_096), LOW + 6 * 170),
        ((2_048, 768), LARGEST),
        ((1 << 31, 1), LOW + 4 * 170),
        ((0, 5), LARGEST),
    ],
)
def test_tokens_follow_openai_s_tiles_and_are_never_above_the_largest(
    size: tuple[int, int], tokens: int
) -> None:
    assert tokens_of(*size) == tokens <= LARGEST


def test_low_detail_is_one_small_class_and_the_text_still_counts() -> None:
    picture = url(PNG)
    low = {"type": "image_url", "image_url": {"url": picture, "detail": "low"}}
    found = images_of(
        chat(
            {"type": "text", "text": "what is this?"},
            low,
            {"type": "image_url", "image_url": picture},
        )
    )
    assert found.body_bytes == 2 * len(picture) and found.tokens == LOW + tokens_of(1_024, 768)


def test_the_bytes_of_base64_are_not_tokens() -> None:
    picture = url(PNG + zlib.compress(bytes(100)) + bytes(3_000_000))
    for path in (CHAT, EMBEDDINGS):
        body = (
            b'{"model":"m","max_tokens":10,"messages":'
            + chat({"type": "image_url", "image_url": {"url": picture}})
            + b"}"
        )
        assert request.worst_case_tokens(request.read(body), body, path, 0) < 1_200


@pytest.mark.parametrize(
    "messages",
    [
        b"null",
        b'"image_url"',
        b'[{"content":["image_url"]}]',
        b'{"image_url":1}',
        b'[{"image_url": 5}]',
    ],
)
def test_messages_that_cannot_be_read_have_no_images(messages: bytes) -> None:
    assert images_of(messages) == NO_IMAGES


def test_no_more_than_the_head_of_an_image_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    import binascii

    decoded: list[int] = []
    real = binascii.a2b_base64
    monkeypatch.setattr("binascii.a2b_base64", lambda text: decoded.append(len(text)) or real(text))
    assert size_of(url(PNG + bytes(1_000_000))) == (1_024, 768)
    assert decoded == [HEAD_CHARS]
