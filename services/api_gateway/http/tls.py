"""The certificates of the gateway's TLS listener, read again when their files change.

There are up to two. Clients see the certificate of their own authority (MUSTER_GATEWAY_CERT_FILE);
a machine that joins asks for the cluster's name and sees the cluster's (MUSTER_TLS_CERT_FILE). A
certificate is replaced whole: a connection has one context from its first message to its last, so a
change reaches later connections only. Tests: tests/integration/test_gateway_tls.py.
"""

import asyncio
import logging
import signal
import ssl
from pathlib import Path
from typing import Final

from libs.common.errors import Refused
from libs.common.safety.following import TLS_NAME
from libs.common.settings.settings import Settings

# Interval at which the files are looked at.
EVERY_S: Final = 1.0
# The protocol that clients are offered in the handshake (ALPN).
PROTOCOLS: Final = ["http/1.1"]

# Time, size and inode of the certificate's file and the key's: another stamp is another file.
Stamp = tuple[tuple[int, int, int], ...]

logger = logging.getLogger(__name__)


class Certificate:
    """A certificate and its private key. `context` is made of the last valid files.

    Raises Refused if the files cannot be used at the start.
    """

    def __init__(self, certificate_file: str, key_file: str) -> None:
        self.certificate_file = certificate_file
        self.key_file = key_file
        self.stamp = self._stamp()
        self.context = self._read()

    def refresh(self, at_once: bool = False) -> None:
        """Read the files again if they changed, or `at_once`. Keep the old ones if they are faulty.

        A new certificate whose key is not there yet is faulty, until its key has come.
        """
        stamp = self._stamp()
        if stamp == self.stamp and not at_once:
            return
        self.stamp = stamp
        try:
            self.context = self._read()
        except Refused as error:
            logger.error("%s; the gateway goes on with the certificate that it has", error)
            return
        logger.info("clients see the new certificate of %s from now on", self.certificate_file)

    def _stamp(self) -> Stamp:
        """Return the stamp of both files; that of a missing one is never equal to a file's."""
        return tuple(_stamp_of(Path(file)) for file in (self.certificate_file, self.key_file))

    def _read(self) -> ssl.SSLContext:
        """Return a context of the files. Raises Refused."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(PROTOCOLS)
        try:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(self.certificate_file, self.key_file, password=lambda: b"")
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise Refused(
                f"the certificate {self.certificate_file} with the key {self.key_file} cannot be "
                f"used ({error}): give two readable PEM files that belong together, and a key "
                "without a password"
            ) from error
        return context


class Certificates:
    """The certificates of one listener. Raises Refused if the settings or the files are faulty."""

    def __init__(self, settings: Settings) -> None:
        own = settings.gateway_cert_file, settings.gateway_key_file
        joining = settings.tls_cert_file, settings.tls_key_file
        self.own = Certificate(*own) if any(own) else None
        self.joining = Certificate(*joining) if any(joining) else None
        if self.own is None and self.joining is None:
            raise Refused(
                f"the gateway has no certificate to listen with TLS on {settings.gateway_tls_host}"
                ": set MUSTER_GATEWAY_CERT_FILE and MUSTER_GATEWAY_KEY_FILE"
            )

    def listener(self) -> ssl.SSLContext:
        """Return the context of the listener. Each connection leaves it for its certificate's."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = self._choose
        return context

    def _choose(
        self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext
    ) -> None:
        first, second = (self.joining, self.own) if name == TLS_NAME else (self.own, self.joining)
        shown = first or second
        assert shown is not None
        connection.context = shown.context

    async def keep_fresh(self) -> None:
        """Read the certificates again when their files change, and at once on SIGHUP."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGHUP, self.refresh, True)
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                self.refresh()
        finally:
            loop.remove_signal_handler(signal.SIGHUP)

    def refresh(self, at_once: bool = False) -> None:
        """Read each certificate again if its files changed, or `at_once`."""
        for each in (self.own, self.joining):
            if each is not None:
                each.refresh(at_once)


def _stamp_of(file: Path) -> tuple[int, int, int]:
    try:
        status = file.stat()
    except OSError:
        return (0, 0, 0)
    return status.st_mtime_ns, status.st_size, status.st_ino
