"""Reads the headers with which a client chooses its request's session and priority.

Tests: tests/integration/test_openai_queues.py and test_openai_routing.py.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Final

from services.api_gateway.openai.errors import ApiError
from services.api_gateway.views.models import PRIORITIES

# The bands, by the words of the header X-Muster-Priority.
BANDS: Final = {name.encode(): band for band, name in enumerate(PRIORITIES)}
SESSION: Final = b"x-muster-session"
PRIORITY: Final = b"x-muster-priority"


def requested_order(header: Mapping[bytes, bytes], tenant: str) -> tuple[int, int]:
    """Return the hash of the session (0 if none is named) and the band.

    Raises ApiError 400 if the priority is unknown.
    """
    session = band = 0
    if name := header.get(SESSION):
        key = tenant.encode() + b"\0" + name
        session = int.from_bytes(blake2b(key, digest_size=8).digest()) or 1
    if (priority := header.get(PRIORITY)) is not None:
        known = BANDS.get(priority.strip().lower())
        if known is None:
            shown = priority[:64].decode("latin-1")
            raise ApiError(400, f"the header X-Muster-Priority is {shown!r}: use normal or low")
        band = known
    return session, band
