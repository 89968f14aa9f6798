"""Bounds what one tenant may store of the uploads of all.

A tenant's archives may need at most four times what is free in the bucket, as with all shares of a
gateway (`access/open_share.py`). If they need more, the oldest that no live job uses are removed.
Archives of other tenants stay. Tests: tests/attack/test_upload_floods.py.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from libs.common.messages import PruneAsk
from libs.common.transport.uploads import Space, Upload
from services.api_gateway.access.open_share import FREE_TIMES
from services.api_gateway.gateway import Gateway
from services.api_gateway.intents.prune_intents import needed_uploads, old_uploads
from services.api_gateway.problems import Problem

# Each archive counts as at least this many bytes, which bounds the number of archives.
COUNTED_BYTES_MIN: Final = 64 << 10


@asynccontextmanager
async def room_for(gateway: Gateway, tenant: str, sha256: str, size: int) -> AsyncIterator[None]:
    """Make room for an archive, which the body of the `with` block stores.

    The archive counts for the tenant at once. Several gateways may store archives of a tenant at
    the same time, each without knowing of the others. So the room is checked again afterwards.
    Raises Problem 507, and Unavailable.
    """
    storing, counted = gateway.shares.storing, max(COUNTED_BYTES_MIN, size)
    storing[tenant] = storing.get(tenant, 0) + counted
    try:
        await _make(gateway, tenant, counted)
        yield
        if _missing(gateway, await gateway.uploads.space(), tenant, counted, is_stored=True) > 0:
            await gateway.uploads.remove(tenant, sha256)
            raise _full(tenant)
    finally:
        storing[tenant] -= counted
        if not storing[tenant]:
            del storing[tenant]


async def _make(gateway: Gateway, tenant: str, counted: int) -> None:
    """Remove as many old archives of the tenant as needed. Raises Problem 507."""
    space = await gateway.uploads.space()
    missing = _missing(gateway, space, tenant, counted)
    if missing <= 0:
        return
    own = [upload for upload in space.uploads if upload.tenant == tenant]
    needed, now_ns = needed_uploads(gateway.cluster), gateway.clock.wall_ns()
    old = old_uploads(own, needed, PruneAsk(keep_bytes=0), now_ns)
    if sum(map(_counted, old)) < missing:
        raise _full(tenant)
    for upload in old:
        if missing <= 0:
            return
        await gateway.uploads.remove(tenant, upload.sha256)
        missing -= _counted(upload)


def _missing(
    gateway: Gateway, space: Space, tenant: str, counted: int, is_stored: bool = False
) -> int:
    """Return by how many bytes the tenant's archives exceed its share.

    `counted` is the archive that is being stored; `is_stored`: it is in the bucket already.
    """
    storing = gateway.shares.storing
    twice = counted if is_stored else 0
    own = sum(_counted(each) for each in space.uploads if each.tenant == tenant)
    own += storing[tenant] - twice
    held = sum(map(_counted, space.uploads)) + sum(storing.values()) - twice
    free = space.bytes_max - (held - counted)
    # Each removed byte is free afterwards, so it counts once more.
    share = -(-(own - FREE_TIMES * free) // (FREE_TIMES + 1))
    return max(share, counted - free)


def _counted(upload: Upload) -> int:
    return max(COUNTED_BYTES_MIN, upload.size_bytes)


def _full(tenant: str) -> Problem:
    return Problem(
        507,
        f"the uploads of tenant {tenant} that live jobs use or that were sent within the last hour "
        "fill the share of the bucket that one tenant may have now: end jobs, wait, or ask an "
        "administrator to run `muster prune` or to enlarge the bucket UPLOADS",
    )
