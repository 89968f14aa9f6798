"""The certificate authority of one cluster, and the certificates of its servers.

Files are created once and kept. Keys are elliptic (P-256). The authority signs only the servers of
this cluster, so all of them show one name (TLS_NAME), and its key never leaves its directory.
Machines that join pin the authority by its fingerprint, and authenticate with nkeys. Certificates
last ten years; `renewal.py` renews them and the authority in place. Test:
tests/unit/test_certificates.py.
"""

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from libs.common.safety.following import TLS_NAME
from libs.embedded.certificate_files import AUTHORITY as AUTHORITY
from libs.embedded.certificate_files import SERVER as SERVER
from libs.embedded.certificate_files import TRUSTED as TRUSTED
from libs.embedded.certificate_files import certificate_file as certificate_file
from libs.embedded.certificate_files import key_file as key_file
from libs.embedded.identity import write_private

DAYS: Final = 3_650
# A machine whose clock is a little behind must accept a new certificate.
BACKDATED: Final = datetime.timedelta(hours=1)


def ensure(keys: Path) -> None:
    """Create the authority and the server certificate of an embedded cluster if there are none.

    Existing files stay: a new authority would lock out every machine that joined.
    """
    if not key_file(keys, SERVER).exists():
        authority(keys, AUTHORITY)
        server(keys, SERVER, AUTHORITY, [TLS_NAME])
    if not certificate_file(keys, TRUSTED).exists():
        write_private(
            certificate_file(keys, TRUSTED), certificate_file(keys, AUTHORITY).read_text()
        )


def authority(folder: Path, name: str) -> None:
    """Create an authority that may sign servers, but no other authority. Existing files stay."""
    if key_file(folder, name).exists():
        return
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("Muster cluster authority")
    builder = _begun(subject, subject, key.public_key())
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs=True), critical=True)
    builder = builder.add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
    )
    _keep(folder, name, builder.sign(key, hashes.SHA256()), key)


def server(folder: Path, name: str, of: str, hosts: Sequence[str]) -> None:
    """Create a certificate for `hosts`, signed by the authority `of`. Existing files stay.

    The server also uses it as a client of the other servers.
    """
    if key_file(folder, name).exists():
        return
    issuer = x509.load_pem_x509_certificate(certificate_file(folder, of).read_bytes())
    signer = serialization.load_pem_private_key(key_file(folder, of).read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _begun(_name(name), issuer.subject, key.public_key())
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False
    )
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    builder = builder.add_extension(_usage(signs=False), critical=True)
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(identifier, critical=False)
    _keep(folder, name, builder.sign(signer, hashes.SHA256()), key)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - BACKDATED).not_valid_after(
        now + datetime.timedelta(days=DAYS)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _keep(
    folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> None:
    """Write the certificate, then the key: without the key, the next run creates both again."""
    pem = serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(certificate_file(folder, name), certificate.public_bytes(pem).decode())
    write_private(key_file(folder, name), private.decode())
