"""Finds the field `model` in a multipart/form-data body, piece by piece.

Pure. The body is not kept: only an incomplete delimiter, head or value waits for the next piece.
Tests: tests/unit/test_openai_multipart.py.
"""

import re
from typing import Final

from services.api_gateway.openai.errors import ApiError

BOUNDARY_MAX: Final = 200
HEAD_BYTES_MAX: Final = 8 << 10
VALUE_BYTES_MAX: Final = 1 << 10
PARTS_MAX: Final = 256
_BOUNDARY: Final = re.compile(rb'(?i);[ \t]?boundary="?([^";\s]+)')
_NAME: Final = re.compile(rb'(?im)^content-disposition:.*?;[ \t]*name="?([^";\r\n]*)')
_FILE: Final = re.compile(rb"(?im)^content-disposition:.*?;[ \t]*filename")
_END_OF_HEAD: Final = b"\r\n\r\n"


def boundary_of(content_type: bytes) -> bytes | None:
    """Return the boundary of a form's content type; None for another type.

    Raises ApiError 400 for a form without a boundary.
    """
    if not content_type.lower().startswith(b"multipart/form-data"):
        return None
    found = _BOUNDARY.search(content_type)
    if found is None or len(found[1]) > BOUNDARY_MAX:
        raise _malformed("the header Content-Type has no boundary")
    return found[1]


class ModelField:
    """The search for the field in one body.

    `name` is its value, None until it was found; it lies at `begin` to `end` in the body.
    """

    def __init__(self, boundary: bytes) -> None:
        self.name: str | None = None
        self.begin = self.end = 0
        self._delimiter = b"\r\n--" + boundary
        # The first delimiter has no line break before it.
        self._text, self._at = b"\r\n", -2
        self._place = 0
        self._parts = 0
        self._step = self._find_part

    def feed(self, data: bytes) -> bool:
        """Take the next piece. Return whether the field was found.

        Raises ApiError 400 for a body that is not a form, or ends without the field.
        """
        self._text += data
        while self.name is None and self._step():
            pass
        # A delimiter may begin two bytes before the place: with the line break that ends a head.
        known = max(0, self._place - 2)
        self._text = self._text[known:]
        self._at += known
        self._place -= known
        return self.name is not None

    def close(self) -> None:
        """Note that the body ended. Raises ApiError 400 if the field was not found."""
        if self.name is None:
            raise _missing()

    def _find_part(self) -> bool:
        """Move behind the next delimiter. Return whether it is complete, as the other steps do."""
        found = self._text.find(self._delimiter, max(0, self._place - 2))
        behind = found + len(self._delimiter)
        if found < 0:
            self._place = max(self._place, len(self._text) - len(self._delimiter) + 1)
        if found < 0 or len(self._text) < behind + 2:
            return False
        if self._text[behind : behind + 2] == b"--":
            raise _missing()
        self._parts += 1
        if self._parts > PARTS_MAX:
            raise _malformed(f"the form has more than {PARTS_MAX} parts before the field model")
        self._place, self._step = behind, self._read_head
        return True

    def _read_head(self) -> bool:
        """Move behind the head of a part."""
        found = self._text.find(_END_OF_HEAD, self._place)
        if (found if found >= 0 else len(self._text)) - self._place > HEAD_BYTES_MAX:
            raise _malformed(f"the head of a part is larger than {HEAD_BYTES_MAX} bytes")
        if found < 0:
            return False
        head = self._text[self._place : found]
        name = _NAME.search(head)
        is_field = name is not None and name[1] == b"model" and not _FILE.search(head)
        self._place = found + len(_END_OF_HEAD)
        self._step = self._read_value if is_field else self._find_part
        return True

    def _read_value(self) -> bool:
        """Take the value up to the next delimiter."""
        found = self._text.find(self._delimiter, self._place - 2)
        end = max(found, self._place) if found >= 0 else len(self._text)
        if end - self._place > VALUE_BYTES_MAX:
            raise _malformed(f"the field model is larger than {VALUE_BYTES_MAX} bytes")
        if found < 0:
            return False
        self.begin, self.end = self._at + self._place, self._at + end
        self.name = self._text[self._place : end].decode(errors="replace")
        return True


def _missing() -> ApiError:
    return ApiError(
        400,
        "model: missing: give the name of a model (GET /v1/models lists them)",
        param="model",
    )


def _malformed(reason: str) -> ApiError:
    return ApiError(400, f"the body is not a form that can be read: {reason}")
