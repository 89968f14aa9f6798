"""Signed heads: the chain's hash at one sequence, signed with Ed25519, to be kept outside the
database.

Someone who keeps a head can later prove that the archive up to there is unchanged: a chain that was
cut off before it, or rewritten with all its hashes, no longer contains that hash. This file signs
and checks; `notary.py` makes heads, and `commands.py` compares an archive with kept heads.
"""

import binascii
from base64 import b32decode, b64decode, b64encode
from typing import Final

import msgspec
import nacl.exceptions
import nacl.signing
import nkeys

from libs.common.errors import Corrupt, Refused

FORMAT: Final = b"muster-head-1"
KEY_BYTES: Final = 35  # a prefix, the key, a checksum
LINE_BYTES_MAX: Final = 4_096
HEADS_MAX: Final = 1_000_000


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """One signed head.

    `at` is RFC 3339 in UTC, `key` the signer's public nkey, `signature` base64.
    """

    cluster: str
    sequence: int
    hash: str
    at: str
    key: str
    signature: str = ""


class Signer:
    """The private key, from an nkey seed. Raises Refused if the text is not a seed."""

    def __init__(self, seed: bytes) -> None:
        try:
            self._pair = nkeys.from_seed(bytearray(seed))  # type: ignore[no-untyped-call]
            self.key = str(self._pair.public_key.decode())
        except (nkeys.NkeysError, ValueError) as error:
            raise Refused(
                "MUSTER_AUDIT_KEY_FILE does not contain an nkey seed: name a file with one, or "
                "leave it empty to sign no heads"
            ) from error

    def sign(self, cluster: str, sequence: int, chain_hash: str, at: str) -> Head:
        head = Head(cluster=cluster, sequence=sequence, hash=chain_hash, at=at, key=self.key)
        return msgspec.structs.replace(
            head, signature=b64encode(self._pair.sign(signed_bytes(head))).decode()
        )


def signed_bytes(head: Head) -> bytes:
    """Return the bytes to sign.

    Each field has its length in front, so that encodings are unique.
    """
    fields = (
        FORMAT,
        head.cluster.encode(),
        b"%d" % head.sequence,
        head.hash.encode(),
        head.at.encode(),
        head.key.encode(),
    )
    return b"".join(b"%d:%b" % (len(field), field) for field in fields)


def problem(head: Head, key: str = "") -> str:
    """Return why a head proves nothing; empty if its signature is right.

    With `key` the head must be signed by that key.
    """
    if key and head.key != key:
        return f"it is signed by {head.key[:64]}, not by {key}"
    try:
        nacl.signing.VerifyKey(_raw(head.key)).verify(
            signed_bytes(head), b64decode(head.signature, validate=True)
        )
    except (nacl.exceptions.CryptoError, ValueError):
        return "its signature is not right: it was changed, or never signed"
    return ""


def _raw(key: str) -> bytes:
    """Return the 32 bytes of a public nkey. Raises ValueError."""
    data = b32decode(key + "=" * (-len(key) % 8))
    if len(data) != KEY_BYTES or binascii.crc_hqx(data[:-2], 0) != int.from_bytes(
        data[-2:], "little"
    ):
        raise ValueError("no public nkey")
    return data[1:-2]


def encode(head: Head) -> bytes:
    """Return the head as one line, without its end."""
    return msgspec.json.encode(head)


def decode(line: bytes) -> Head:
    """Return the head of a line. Raises Corrupt."""
    try:
        return msgspec.json.decode(line, type=Head)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(
            f"this line is not a head ({error}): {line[:80].decode(errors='replace')!r}"
        ) from error
