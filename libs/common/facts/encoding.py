"""Encodes facts, and refuses values that no reader could decode.

Pure. Tests: tests/unit/test_packed_commits.py.
"""

from typing import Final

import msgspec

from libs.common.errors import Refused

# Errors that the encoder raises for numbers over 64 bits and for text that is not Unicode.
UNENCODABLE: Final = (OverflowError, UnicodeEncodeError)

_encoder = msgspec.msgpack.Encoder()


def encoded(value: object) -> bytes:
    """Return the bytes of facts or of a commit. Raises Refused if they cannot be encoded."""
    try:
        return _encoder.encode(value)
    except UNENCODABLE as error:
        raise Refused(f"the log cannot store a value of a fact: {error}") from error
