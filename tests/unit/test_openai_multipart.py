"""The field `model` in a form: found wherever it is, in pieces of any size, or refused."""

import pytest

from services.api_gateway.openai.errors import ApiError
from services.api_gateway.openai.multipart import (
    HEAD_BYTES_MAX,
    PARTS_MAX,
    VALUE_BYTES_MAX,
    ModelField,
    boundary_of,
)

FILE = (b'name="file"; filename="a.wav"\r\nContent-Type: audio/wav', b"\r\n--B\r\n-\r\n--b" * 50)


def form(*parts: tuple[bytes, bytes], ends: bool = True) -> bytes:
    body = b"".join(
        b"--bound\r\nContent-Disposition: form-data; " + head + b"\r\n\r\n" + value + b"\r\n"
        for head, value in parts
    )
    return body + (b"--bound--\r\n" if ends else b"")


def field(name: bytes, value: bytes) -> tuple[bytes, bytes]:
    return b'name="' + name + b'"', value


def found_in(body: bytes, piece: int) -> ModelField:
    search = ModelField(b"bound")
    for begin in range(0, len(body), piece):
        if search.feed(body[begin : begin + piece]):
            break
    return search


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize(
    "parts",
    [
        (field(b"model", b"Org/M"), FILE),
        (FILE, field(b"model", b"Org/M")),
        (field(b"a", b""), field(b"language", b"en"), field(b"model", b"Org/M"), FILE),
        ((b'name="model"; filename="x"', b"file"), field(b"model", b"Org/M")),
        (
            (b'filename="model"; name="f"', b"file"),
            field(b"models", b"x"),
            (b"name=model", b"Org/M"),
        ),
    ],
)
def test_it_is_found_at_its_place_whatever_comes_before_it(
    parts: tuple[tuple[bytes, bytes], ...], piece: int
) -> None:
    body = form(*parts)
    search = found_in(body, piece)
    assert search.name == "Org/M" and body[search.begin : search.end] == b"Org/M"
    search.close()


@pytest.mark.parametrize("piece", [1, 5, 1 << 20])
def test_an_empty_field_is_found_as_empty(piece: int) -> None:
    body = form(field(b"model", b""), FILE)
    search = found_in(body, piece)
    assert search.name == "" and search.begin == search.end
    assert body[search.begin :].startswith(b"\r\n--bound")


@pytest.mark.parametrize("piece", [1, 1 << 20])
@pytest.mark.parametrize("body", [form(), form(FILE), form(field(b"a", b"b"))])
def test_a_form_without_it_is_a_400_that_names_the_field(body: bytes, piece: int) -> None:
    with pytest.raises(ApiError, match="model: missing") as caught:
        found_in(body, piece)
    assert (caught.value.status, caught.value.param) == (400, "model")


@pytest.mark.parametrize("body", [b"", b"{}", form(FILE, ends=False)])
def test_a_body_that_ends_before_it_is_refused_when_it_ends(body: bytes) -> None:
    search = found_in(body, 3)
    with pytest.raises(ApiError, match="model: missing"):
        search.close()


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"--bound\r\n" + b"x" * (HEAD_BYTES_MAX + 1), "head of a part"),
        (form((b"x" * HEAD_BYTES_MAX, b"")), "head of a part"),
        (form(field(b"model", b"x" * (VALUE_BYTES_MAX + 1))), "field model is larger"),
        (form(field(b"model", b"x" * (VALUE_BYTES_MAX + 99)), ends=False)[:-9], "is larger"),
        (form(*[field(b"a", b"b")] * (PARTS_MAX + 1)), "more than 256 parts"),
    ],
)
def test_what_has_no_bound_of_its_own_is_refused(body: bytes, word: str) -> None:
    with pytest.raises(ApiError, match=word):
        found_in(body, 4_096)


def test_no_more_than_a_piece_and_what_is_incomplete_is_kept() -> None:
    search = ModelField(b"bound")
    search.feed(form(FILE, ends=False))
    for _ in range(100):
        search.feed(b"\r\n--boun" * 1_000)
        assert len(search._text) < 20


@pytest.mark.parametrize(
    ("header", "boundary"),
    [
        (b"multipart/form-data; boundary=x-1", b"x-1"),
        (b'Multipart/Form-Data; charset=utf-8; Boundary="x:2"', b"x:2"),
        (b'multipart/form-data;boundary="x/1"', b"x/1"),
        (b"application/json", None),
        (b"", None),
    ],
)
def test_the_boundary_is_read_from_the_content_type(header: bytes, boundary: bytes | None) -> None:
    assert boundary_of(header) == boundary


@pytest.mark.parametrize("more", [b"", b"; boundary=" + b"x" * 201])
def test_a_form_without_a_boundary_is_refused(more: bytes) -> None:
    with pytest.raises(ApiError, match="no boundary"):
        boundary_of(b"multipart/form-data" + more)
