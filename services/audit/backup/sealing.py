"""Seals the objects of a backup with the operator's key, in bounded frames.

Each object has a salt and a key of its own, derived from the operator's key. The frames are
AES-256-GCM with a counter as nonce, and the last one is marked, so a frame can be neither moved,
repeated nor cut off. The purpose of an object is a part of its key: a segment does not open as a
manifest. Tests: tests/unit/test_backup_sealing.py.
"""

import base64
import binascii
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from libs.common.errors import Corrupt, Refused
from libs.embedded.identity import write_private

KEY_BYTES: Final = 32
SALT_BYTES: Final = 32
KEY_ID_BYTES: Final = 8
MAGIC: Final = b"muster-backup-1\n"
HEAD_BYTES: Final = len(MAGIC) + KEY_ID_BYTES + SALT_BYTES
# Plain bytes in one frame, and what the frame adds.
FRAME_BYTES: Final = 1 << 20
TAG_BYTES: Final = 16
NONCE_COUNTER_BYTES: Final = 11
# The most plain bytes in one object.
OBJECT_BYTES_MAX: Final = 256 << 20
GROUP_OR_OTHERS: Final = 0o077

MANIFEST: Final = b"manifest"
SEGMENT: Final = b"segment"


def new_key(path: Path) -> None:
    """Create a key file of mode 0600. Raises Refused if the file exists or cannot be written."""
    if path.exists():
        raise Refused(f"{path} exists: a key that backups were sealed with must not be replaced")
    try:
        write_private(path, base64.b64encode(os.urandom(KEY_BYTES)).decode())
    except OSError as error:
        raise Refused(
            f"the key file {path} cannot be written ({error.strerror}): choose another path"
        ) from error


def read_key(path: Path) -> bytes:
    """Return the operator's key. Raises Refused if the file holds none, or others can read it."""
    try:
        mode, text = path.stat().st_mode, path.read_text(encoding="ascii")
        key = base64.b64decode(text.strip(), validate=True)
    except FileNotFoundError as error:
        raise Refused(
            f"there is no key file {path}: create one with `muster backup --new-key FILE`, and "
            "keep a copy away from this machine"
        ) from error
    except (OSError, UnicodeDecodeError, binascii.Error) as error:
        raise Refused(f"the key file {path} cannot be read ({error}): check its content") from error
    if mode & GROUP_OR_OTHERS:
        raise Refused(f"other users can read the key file {path}: run chmod 600 {path}")
    if len(key) != KEY_BYTES:
        raise Refused(
            f"{path} is not a backup key: {KEY_BYTES} bytes in base64 are expected, and it has "
            f"{len(key)}"
        )
    return key


def key_id(key: bytes) -> bytes:
    """Return the public name of a key, by which a wrong key is told from a changed object."""
    return HKDF(SHA256(), KEY_ID_BYTES, None, b"muster backup key id").derive(key)


def seal(key: bytes, purpose: bytes, data: bytes) -> bytes:
    """Return the sealed object of these bytes. Raises Refused if they are too many."""
    if len(data) > OBJECT_BYTES_MAX:
        raise Refused(
            f"an object of a backup has {len(data)} bytes, and at most {OBJECT_BYTES_MAX} are "
            "allowed"
        )
    salt = os.urandom(SALT_BYTES)
    cipher = _cipher(key, purpose, salt)
    packed = zlib.compress(data, 1)
    starts = range(0, max(1, len(packed)), FRAME_BYTES)
    frames = [
        cipher.encrypt(
            _nonce(number, last=start + FRAME_BYTES >= len(packed)),
            packed[start : start + FRAME_BYTES],
            MAGIC,
        )
        for number, start in enumerate(starts)
    ]
    return b"".join([MAGIC, key_id(key), salt, *frames])


def opened(key: bytes, purpose: bytes, sealed: bytes, what: str) -> bytes:
    """Return the bytes of a sealed object; `what` names it in errors.

    Raises Refused for another key or another format, Corrupt for a changed object.
    """
    if len(sealed) < HEAD_BYTES + TAG_BYTES or not sealed.startswith(MAGIC):
        raise Corrupt(
            f"{what} is not an object of a backup, or it was cut off: restore the place itself, or "
            "use another backup"
        )
    named = sealed[len(MAGIC) : len(MAGIC) + KEY_ID_BYTES]
    if named != key_id(key):
        raise Refused(
            f"{what} was sealed with the key {named.hex()}, and this key is {key_id(key).hex()}: "
            "give the key file of the backup with --key-file (or its first bytes were changed)"
        )
    salt = sealed[HEAD_BYTES - SALT_BYTES : HEAD_BYTES]
    cipher, packed = _cipher(key, purpose, salt), bytearray()
    try:
        for number, frame, last in _frames(sealed):
            packed += cipher.decrypt(_nonce(number, last), frame, MAGIC)
    except InvalidTag as error:
        raise changed(what) from error
    return _inflated(bytes(packed), what)


def changed(what: str) -> Corrupt:
    """Return the error for an object that is not what was written."""
    return Corrupt(
        f"{what} was changed since it was written: nothing was restored from it; use another copy "
        "of this backup"
    )


def _frames(sealed: bytes) -> Iterator[tuple[int, bytes, bool]]:
    step = FRAME_BYTES + TAG_BYTES
    for number, start in enumerate(range(HEAD_BYTES, len(sealed), step)):
        yield number, sealed[start : start + step], start + step >= len(sealed)


def _inflated(packed: bytes, what: str) -> bytes:
    inflater = zlib.decompressobj()
    try:
        data = inflater.decompress(packed, OBJECT_BYTES_MAX + 1)
    except zlib.error as error:
        raise changed(what) from error
    if len(data) > OBJECT_BYTES_MAX or not inflater.eof:
        raise changed(what)
    return data


def _cipher(key: bytes, purpose: bytes, salt: bytes) -> AESGCM:
    return AESGCM(HKDF(SHA256(), KEY_BYTES, salt, b"muster backup " + purpose).derive(key))


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(NONCE_COUNTER_BYTES, "big") + bytes([last])
