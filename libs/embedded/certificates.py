"""The cluster's own authority and the certificate of its servers, made at the first start that listens to other machines.

The authority signs nothing but the servers of this cluster, so the one name in the certificate says all: who holds the authority's
certificate needs no address to be right. Machines that join pin the authority by its fingerprint; they themselves have nkeys.
"""

import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from libs.common.log_jetstream import TLS_NAME
from libs.embedded.identity import write_private

VALID_DAYS: Final = 3_650


def ca_file(keys: Path) -> Path:
    return keys / "ca.pem"


def cert_file(keys: Path) -> Path:
    return keys / "server.pem"


def key_file(keys: Path) -> Path:
    return keys / "server.key"


def ensure(keys: Path) -> None:
    """Made once and kept: another authority would lock out every machine that joined. Its own key is not kept: it signs once."""
    if ca_file(keys).exists() and cert_file(keys).exists() and key_file(keys).exists():
        return
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"{TLS_NAME} authority")
    ca = _certificate(subject, subject, authority.public_key(), authority, x509.BasicConstraints(ca=True, path_length=0))
    names = x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)])
    own = _certificate(_name(TLS_NAME), subject, server.public_key(), authority, names)
    private = server.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(key_file(keys), private.decode())
    write_private(cert_file(keys), own.public_bytes(serialization.Encoding.PEM).decode())
    write_private(ca_file(keys), ca.public_bytes(serialization.Encoding.PEM).decode())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePrivateKey,
    extension: x509.ExtensionType,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=VALID_DAYS)).add_extension(extension, critical=False)
    return builder.sign(signer, hashes.SHA256())
