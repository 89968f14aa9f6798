"""Signs requests to S3 and compatible stores (AWS Signature Version 4).

Pure: the time is an argument. Only what a backup needs: requests with their headers signed, and the
SHA-256 of the body. The signature is checked against the example of AWS's documentation in
tests/unit/test_s3_signing.py. An S3 library would bring more code than the whole backup.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import msgspec

ALGORITHM: Final = "AWS4-HMAC-SHA256"
SERVICE: Final = "s3"


class Credentials(msgspec.Struct, frozen=True):
    """The key pair of one account. `token` belongs to temporary credentials; empty: none."""

    access_key: str
    secret_key: str
    token: str = ""


def signed_headers(
    credentials: Credentials,
    region: str,
    method: str,
    host: str,
    path: str,
    query: Mapping[str, str],
    body_sha256: str,
    stamp: str,
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the headers of one signed request. `stamp` is like 20130524T000000Z."""
    headers = {
        "host": host,
        "x-amz-content-sha256": body_sha256,
        "x-amz-date": stamp,
        **(more or {}),
    }
    if credentials.token:
        headers["x-amz-security-token"] = credentials.token
    names = ";".join(sorted(headers))
    canonical = "\n".join(
        [
            method,
            encoded_path(path),
            encoded_query(query),
            *(f"{name}:{headers[name].strip()}" for name in sorted(headers)),
            "",
            names,
            body_sha256,
        ]
    )
    scope = f"{stamp[:8]}/{region}/{SERVICE}/aws4_request"
    text = "\n".join([ALGORITHM, stamp, scope, _sha256(canonical.encode())])
    signature = hmac.new(
        _signing_key(credentials.secret_key, stamp[:8], region), text.encode(), hashlib.sha256
    ).hexdigest()
    authorization = (
        f"{ALGORITHM} Credential={credentials.access_key}/{scope},SignedHeaders={names},"
        f"Signature={signature}"
    )
    return headers | {"authorization": authorization}


def encoded_path(path: str) -> str:
    return quote(path, safe="/-_.~")


def encoded_query(query: Mapping[str, str]) -> str:
    return "&".join(
        f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}"
        for name, value in sorted(query.items())
    )


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _signing_key(secret: str, day: str, region: str) -> bytes:
    key = b"AWS4" + secret.encode()
    for part in (day, region, SERVICE, "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key
