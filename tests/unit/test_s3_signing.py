"""Signed requests to S3: the examples of AWS's documentation give its signatures."""

import hashlib

from services.audit.backup.s3_signing import Credentials, signed_headers

# The key pair of the documentation's examples.
EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = "examplebucket.s3.amazonaws.com"
EMPTY = hashlib.sha256(b"").hexdigest()


def signature(path: str, query: dict[str, str], more: dict[str, str] | None = None) -> str:
    headers = signed_headers(
        credentials=EXAMPLE,
        region="us-east-1",
        method="GET",
        host=HOST,
        path=path,
        query=query,
        body_sha256=EMPTY,
        stamp="20130524T000000Z",
        more=more,
    )
    return headers["authorization"].rpartition("Signature=")[2]


def test_a_get_of_a_range_has_the_signature_of_the_documentation() -> None:
    assert signature("/test.txt", {}, {"range": "bytes=0-9"}) == (
        "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


def test_a_list_has_the_signature_of_the_documentation() -> None:
    assert signature("/", {"max-keys": "2", "prefix": "J"}) == (
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
    )


def test_the_token_of_temporary_credentials_is_signed() -> None:
    headers = signed_headers(
        credentials=Credentials("a", "b", "token"),
        region="r",
        method="PUT",
        host="h",
        path="/b/k e y",
        query={},
        body_sha256=EMPTY,
        stamp="20130524T000000Z",
    )
    assert headers["x-amz-security-token"] == "token"
    assert "x-amz-security-token" in headers["authorization"]
