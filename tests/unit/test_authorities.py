"""A new authority is trusted only if the key of a trusted one has signed it."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from libs.common.errors import Refused
from libs.common.safety.authorities import KEPT_MAX, extended, introduce
from libs.common.safety.following import FollowingContext, Introduction
from libs.embedded import certificates


class Authority:
    """An authority with its key."""

    def __init__(self, folder: Path, name: str) -> None:
        certificates.authority(folder, name)
        self.pem = certificates.certificate_file(folder, name).read_text()
        key = serialization.load_pem_private_key(
            certificates.key_file(folder, name).read_bytes(), None
        )
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self.key = key


def test_an_authority_that_the_present_one_signed_is_trusted_beside_it(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    after = extended(old.pem, introduce(new.pem, old.key))
    assert after == old.pem + new.pem
    assert extended(after, introduce(new.pem, old.key)) == after


def test_an_authority_that_another_key_signed_is_refused(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    for signature in (introduce(new.pem, new.key).signature, b"", b"x" * 70):
        with pytest.raises(Refused, match="has signed it"):
            extended(old.pem, Introduction(new.pem, signature))


def test_a_certificate_of_a_server_is_no_authority(tmp_path: Path) -> None:
    old = Authority(tmp_path, "old")
    certificates.server(tmp_path, "server", "old", ["muster"])
    pem = certificates.certificate_file(tmp_path, "server").read_text()
    with pytest.raises(Refused, match="is not an authority"):
        extended(old.pem, introduce(pem, old.key))


@pytest.mark.parametrize("pem", ["", "hello", "-----BEGIN CERTIFICATE-----"])
def test_other_text_is_no_certificate(tmp_path: Path, pem: str) -> None:
    old = Authority(tmp_path, "old")
    with pytest.raises(Refused, match="one certificate"):
        extended(old.pem, Introduction(pem, b""))
    with pytest.raises(Refused, match="cannot be read"):
        extended("hello", introduce(old.pem, old.key))


def test_only_the_newest_authorities_stay(tmp_path: Path) -> None:
    last = Authority(tmp_path, "0")
    trusted = last.pem
    for number in range(1, KEPT_MAX + 2):
        new = Authority(tmp_path, str(number))
        trusted, last = extended(trusted, introduce(new.pem, last.key)), new
    assert trusted.count("BEGIN CERTIFICATE") == KEPT_MAX
    assert trusted.endswith(last.pem)


def test_a_context_follows_its_file(tmp_path: Path) -> None:
    import ssl

    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    file = tmp_path / "trusted.pem"
    file.write_text(old.pem)
    context = FollowingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.follow(str(file))
    assert len(context.get_ca_certs()) == 1
    (tmp_path / "next").write_text(old.pem + new.pem)
    (tmp_path / "next").replace(file)
    context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="muster")
    assert len(context.get_ca_certs()) == 2
