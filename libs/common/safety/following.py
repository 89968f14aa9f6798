"""A context of TLS that follows the file of trusted authorities, and the messages that change it.

A process trusts a new authority at its next handshake, without a restart. This file needs no
library for certificates, whose import takes a tenth of an agent's start: `authorities.py` does.
Tests: tests/unit/test_authorities.py.
"""

import ssl
from pathlib import Path
from typing import Any, Final

import msgspec

# The name in the certificate of every server, whatever its address is
# (`libs/embedded/certificates.py`).
TLS_NAME: Final = "muster"


class Introduction(msgspec.Struct, frozen=True):
    """A new authority's certificate (PEM), and the signature of the one before."""

    pem: str
    signature: bytes


class Introduced(msgspec.Struct, frozen=True):
    """The answer of an agent. `refused` is why it does not trust the new authority."""

    refused: str = ""


class FollowingContext(ssl.SSLContext):
    """A context that reads its authorities again before a handshake if their file changed.

    Authorities are only added: one that left the file is trusted until the process ends.
    """

    file = ""
    stamp: tuple[int, int] = (0, 0)

    def follow(self, file: str) -> None:
        """Trust the authorities of this file from now on. Raises OSError."""
        self.file = file
        self._refresh()

    def wrap_bio(self, *given: Any, **named: Any) -> ssl.SSLObject:  # noqa: ANN401 - passed on
        self._refresh()
        return super().wrap_bio(*given, **named)

    def _refresh(self) -> None:
        status = Path(self.file).stat()
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self.stamp:
            self.load_verify_locations(cafile=self.file)
            self.stamp = stamp
