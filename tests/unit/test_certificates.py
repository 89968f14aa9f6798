"""Certificates of a cluster's own authority, as OpenSSL (through `ssl`) judges them in a real
handshake.
"""

import socket
import ssl
import threading
from pathlib import Path

import pytest

from libs.embedded import certificates


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    certificates.authority(tmp_path, "authority")
    certificates.server(tmp_path, "nats-1", "authority", ["nats-1", "localhost"])
    return tmp_path


def shake(folder: Path, trusted: Path, host: str) -> str:
    """Return the error of a client that trusts `trusted` and calls the server `nats-1` by `host`.

    Empty when the handshake succeeds.
    """
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(
        certificates.certificate_file(folder, "nats-1"), certificates.key_file(folder, "nats-1")
    )
    ours, theirs = socket.socketpair()
    answering = threading.Thread(target=_answer, args=(server, theirs))
    answering.start()
    try:
        context = ssl.create_default_context(cafile=trusted)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        with context.wrap_socket(ours, server_hostname=host):
            return ""
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    finally:
        ours.close()
        answering.join()


def _answer(context: ssl.SSLContext, connection: socket.socket) -> None:
    try:
        context.wrap_socket(connection, server_side=True).close()
    except (ssl.SSLError, OSError):
        connection.close()


def test_server_certificate_is_valid_for_its_names(folder: Path) -> None:
    trusted = certificates.certificate_file(folder, "authority")
    assert [shake(folder, trusted, host) for host in ("nats-1", "localhost")] == ["", ""]


def test_server_certificate_is_invalid_for_another_name(folder: Path) -> None:
    assert "nats-2" in shake(folder, certificates.certificate_file(folder, "authority"), "nats-2")


def test_certificate_of_another_authority_is_invalid(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    certificates.authority(other, "authority")
    assert shake(folder, certificates.certificate_file(other, "authority"), "nats-1") != ""


def test_files_are_kept_and_readable_by_their_owner_only(folder: Path) -> None:
    before = {path: path.read_bytes() for path in folder.iterdir()}
    certificates.authority(folder, "authority")
    certificates.server(folder, "nats-1", "authority", ["nats-1", "localhost"])
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_interrupted_creation_is_repeated(folder: Path) -> None:
    certificates.key_file(folder, "nats-1").unlink()
    certificates.server(folder, "nats-1", "authority", ["nats-1", "localhost"])
    assert shake(folder, certificates.certificate_file(folder, "authority"), "nats-1") == ""
