"""The header Idempotency-Key: whoever repeats a request that creates something is given what the
first one made.

Pure. The thing's id is a hash of the tenant and the client's key, so that two gateways make the
same one without asking each other: the log takes both commits, the fold keeps the first. What was
asked is kept as a digest beside it, so that another body is told apart. It holds as long as the
fold knows the thing.
"""

import hashlib
import re
from base64 import b32encode
from typing import Final, NamedTuple

import msgspec

from libs.common.errors import Refused
from services.api_gateway.problems import Problem

HEADER: Final = "idempotency-key"
REPLAYED: Final = {"idempotent-replayed": "true"}
ID_CHARS: Final = 16
_KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")


class Once(NamedTuple):
    """What a repeated request must agree in. `digest` is empty for a request without the header."""

    id: str = ""
    digest: str = ""

    def check(self, tenant_agrees: bool, digest: str) -> None:
        """Raises Problem 409 when the thing of this id was asked for in other words."""
        if not tenant_agrees or digest != self.digest:
            raise Problem(
                409,
                (
                    "this Idempotency-Key was used for another request: send a new one, or the "
                    "same body"
                ),
            )


NEVER: Final = Once()


def once(header: str | None, kind: str, tenant: str, body: object) -> Once:
    """Raises Refused for a header that is no key."""
    if header is None:
        return NEVER
    if not _KEY.fullmatch(header):
        raise Refused(
            "Idempotency-Key: give 1 to 255 printable ASCII characters without spaces, for "
            "instance a UUID"
        )
    digest = hashlib.sha256(f"{kind}\0{tenant}\0{header}".encode()).digest()
    words = hashlib.sha256(
        header.encode() + b"\0" + msgspec.json.encode(body, order="sorted")
    ).hexdigest()
    return Once(b32encode(digest).decode().lower()[:ID_CHARS], words)
