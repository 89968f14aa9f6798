"""Authentication of links: both sides prove themselves over the whole handshake.

A proof covers the role and a hash of both hellos, with a fresh nonce of each side: it is worth
nothing on another connection or in the other direction. Tests: tests/attack/test_transport.py.
"""

import hmac
from typing import Final, Protocol

KEY_BYTES_MIN: Final = 16
NAME_BYTES_MAX: Final = 200
PROOF_BYTES_MAX: Final = 4 << 10
_CONTEXT: Final = b"\x00muster link 1\x00"
_SUM_BYTES: Final = 32


class Refused(Exception):
    """The other side did not prove that it may open this link; the text says why."""


class Access(Protocol):
    """Proofs of one side. `role` is `dial` or `listen`."""

    def prove(self, role: str, transcript: bytes) -> bytes:
        """Return this side's proof."""

    def check(self, role: str, transcript: bytes, proof: bytes) -> str:
        """Return the name of the other side, whose role this is. Raises Refused."""


class SharedKey:
    """Access for all who know one secret key, such as the processes of one job."""

    def __init__(self, key: bytes, name: str) -> None:
        if len(key) < KEY_BYTES_MIN:
            raise ValueError(f"a key of {len(key)} bytes: it needs at least {KEY_BYTES_MIN}")
        if not name or len(name.encode()) > NAME_BYTES_MAX:
            raise ValueError(f"the name {name!r} must have 1 to {NAME_BYTES_MAX} bytes")
        self._key = key
        self.name = name

    def prove(self, role: str, transcript: bytes) -> bytes:
        """Return a keyed hash, and the own name."""
        name = self.name.encode()
        return self._sum(role, transcript, name) + name

    def check(self, role: str, transcript: bytes, proof: bytes) -> str:
        """Return the name in the proof. Raises Refused."""
        found, name = proof[:_SUM_BYTES], proof[_SUM_BYTES:]
        if not hmac.compare_digest(found, self._sum(role, transcript, name)):
            raise Refused("the other side does not know the key of this link")
        try:
            return name.decode()
        except UnicodeDecodeError:
            raise Refused("the name of the other side is no text") from None

    def _sum(self, role: str, transcript: bytes, name: bytes) -> bytes:
        said = b"\x00".join((_CONTEXT, role.encode(), transcript, name))
        return hmac.digest(self._key, said, "sha256")
