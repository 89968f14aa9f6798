"""The header Idempotency-Key: a repeated request that creates something gets the first one's
answer.

Pure. The thing's id is a hash of the tenant and the client's key, so two gateways choose the same
id without asking each other: the log takes both commits, and the fold keeps the first. A digest of
the request is recorded with it, so that a different body is noticed. A key holds as long as the
fold knows the thing.
"""

import hashlib
import re
from base64 import b32encode
from typing import Final, NamedTuple

import msgspec

from libs.common.errors import Refused
from services.api_gateway.access.roles import Principal
from services.api_gateway.problems import Problem

HEADER: Final = "idempotency-key"
REPLAYED: Final = {"idempotent-replayed": "true"}
ID_CHARS: Final = 16
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")


class Once(NamedTuple):
    """The id and digest that a repeated request must have; empty without the header."""

    id: str = ""
    digest: str = ""

    def check(self, tenant_agrees: bool, digest: str) -> None:
        """Raise Problem 409 if the thing of this id was created by a different request."""
        if not tenant_agrees or digest != self.digest:
            raise Problem(
                409,
                (
                    "Idempotency-Key: the key was used for another request: send a new key, or the "
                    "same body"
                ),
            )


NEVER: Final = Once()


def once(header: str | None, kind: str, tenant: str, body: object) -> Once:
    """Return the id and digest of a request. Raises Refused if the header is not valid."""
    if header is None:
        return NEVER
    if not _KEY.fullmatch(header):
        raise Refused(
            f"Idempotency-Key: {header[:64]!r} is not valid: give 1 to 255 printable ASCII "
            "characters without spaces, for example a UUID"
        )
    words = hashlib.sha256(
        header.encode() + b"\0" + msgspec.json.encode(body, order="sorted")
    ).hexdigest()
    return Once(_id(kind, tenant, header), words)


def once_each(
    header: str | None, kind: str, principal: Principal, body: object, count: int
) -> tuple[Once, ...]:
    """Return the id and digest of each of the things that one request creates.

    All have the digest of the whole request and its user: the body need not name the user, and
    another user of the tenant must not get the first one's things. Raises as `once`.
    """
    tenant = principal.tenant
    whole = once(header, kind, tenant, [principal.user, body])
    if header is None:
        return (NEVER,) * count
    return tuple(Once(_id(kind, tenant, header, str(each)), whole.digest) for each in range(count))


def _id(*parts: str) -> str:
    digest = hashlib.sha256("\0".join(parts).encode()).digest()
    return b32encode(digest).decode().lower()[:ID_CHARS]
