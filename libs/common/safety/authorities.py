"""The certificate authorities that a process trusts: several while the cluster's is exchanged.

A new authority is trusted only if the key of one that is trusted already has signed it for this
purpose. So neither a gateway nor a server can introduce one. The messages, and the context that
follows the file, are in `following.py`. Tests: tests/unit/test_authorities.py.
"""

import datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from libs.common.errors import Refused
from libs.common.safety.following import Introduction

# The signature is valid for the introduction of an authority only.
CONTEXT: Final = b"muster authority 1\x00"
# The newest authorities that stay in a file.
KEPT_MAX: Final = 4
PEM_BYTES_MAX: Final = 16 << 10


def introduce(pem: str, key: ec.EllipticCurvePrivateKey) -> Introduction:
    """Sign a new authority with the key of the present one."""
    signature = key.sign(CONTEXT + _der(pem), ec.ECDSA(hashes.SHA256()))
    return Introduction(pem, signature)


def extended(trusted: str, offered: Introduction) -> str:
    """Return the trusted authorities (PEM) with the offered one, the newest last.

    Raises Refused if the offered one is not an authority, is over, or is not signed by the key of a
    trusted one.
    """
    known = _certificates(trusted)
    der = _der(offered.pem)
    new = x509.load_der_x509_certificate(der)
    if any(each == new for each in known):
        return trusted
    if not _is_authority(new):
        raise Refused("the certificate is not an authority, or it is not valid now")
    if not any(_has_signed(each, der, offered.signature) for each in known):
        raise Refused("no authority that this machine trusts has signed it")
    return "".join(_pem(each) for each in [*known, new][-KEPT_MAX:])


def _has_signed(authority: x509.Certificate, der: bytes, signature: bytes) -> bool:
    key = authority.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, CONTEXT + der, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _is_authority(certificate: x509.Certificate) -> bool:
    now = datetime.datetime.now(datetime.UTC)
    try:
        basic = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return (
        basic.ca
        and certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc
        and certificate.issuer == certificate.subject
    )


def _certificates(pem: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem.encode())
    except ValueError as error:
        raise Refused(f"the file of trusted authorities cannot be read ({error})") from error


def _der(pem: str) -> bytes:
    """Return the certificate's bytes. Raises Refused for other text, or more than one."""
    try:
        found = x509.load_pem_x509_certificates(pem.encode())
        if len(found) == 1 and len(pem) <= PEM_BYTES_MAX:
            return found[0].public_bytes(serialization.Encoding.DER)
    except ValueError:
        pass
    raise Refused("one certificate in PEM is expected")


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
