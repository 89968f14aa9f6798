"""The certificates that this gateway uses, and the days that each is still valid."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from libs.common.settings.settings import Settings

SECONDS_A_DAY: Final = 86_400
# An operator renews a certificate that ends sooner than this.
SOON_DAYS: Final = 30


class CertificateSeen(msgspec.Struct, frozen=True):
    """One certificate. `ends_ns` is the end of its validity."""

    name: str
    subject: str
    ends_ns: int


def files_of(settings: Settings) -> dict[str, str]:
    """Return the files of certificates by what they are for. A file is named once."""
    named = {
        "authority": settings.tls_ca_file or settings.nats_ca_file,
        "servers of the log": settings.nats_ca_file,
        "gateway, for the cluster": settings.tls_cert_file,
        "gateway, for clients": settings.gateway_cert_file,
    }
    found: dict[str, str] = {}
    for name, file in named.items():
        if file and file not in found.values():
            found[name] = file
    return found


def read(files: Iterable[tuple[str, str]]) -> list[CertificateSeen]:
    """Return the first certificate of each file. A file that cannot be read is left out: the
    listener that uses it reports that.
    """
    found: list[CertificateSeen] = []
    for name, file in files:
        try:
            found.append(_seen(name, Path(file).read_bytes()))
        except (OSError, ValueError):
            continue
    return found


def _seen(name: str, pem: bytes) -> CertificateSeen:
    """Return the first certificate. Raises ValueError if there is none."""
    # Imported here, because a gateway without certificates does not need it at its start.
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(pem)
    return CertificateSeen(
        name,
        certificate.subject.rfc4514_string(),
        int(certificate.not_valid_after_utc.timestamp()) * 1_000_000_000,
    )


def days_left(ends_ns: int, now_ns: int) -> int:
    """Return the whole days until the end; negative if it has passed."""
    end, now = (datetime.fromtimestamp(each / 1e9, UTC) for each in (ends_ns, now_ns))
    return int((end - now).total_seconds() // SECONDS_A_DAY)
