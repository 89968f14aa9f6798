"""Checks public nkeys of users as nats-server does: length, prefix, base 32 and checksum. Pure.

One malformed key makes nats-server refuse its whole file, so every component that takes a key from
outside asks this module first. Tests: tests/unit/test_public_nkey.py.
"""

import base64
import binascii
from typing import Final

TEXT_LENGTH: Final = 56
LETTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
KEY_BYTES: Final = 32
CHECKSUM_BYTES: Final = 2
# The first byte of a user's public key; it is what makes the text begin with U.
USER_PREFIX: Final = 20 << 3


def raw(public: str) -> bytes:
    """Return the 32 bytes of the Ed25519 key.

    Raises ValueError with the reason if `public` is no user's public nkey.
    """
    if len(public) != TEXT_LENGTH:
        raise ValueError(
            f"{public[:64]!r} has {len(public)} characters, and a public nkey has {TEXT_LENGTH}"
        )
    if not set(public) <= LETTERS:
        raise ValueError(f"{public!r} is not base 32: use the letters A to Z and the digits 2 to 7")
    data = base64.b32decode(public)
    if data[0] != USER_PREFIX:
        raise ValueError(f"{public!r} is not the key of a user: such a key begins with U")
    body, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    if binascii.crc_hqx(body, 0).to_bytes(CHECKSUM_BYTES, "little") != checksum:
        raise ValueError(f"{public!r} does not match its own checksum: copy the key again")
    return body[1:]


def fault(public: str) -> str:
    """Return why `public` is no user's public nkey; empty if it is one."""
    try:
        raw(public)
    except ValueError as error:
        return str(error)
    return ""
