"""Bounds what one tenant may store of the uploads of all.

A tenant's archives may need at most four times what is free in the bucket, as with all shares
(`libs/common/open_share.py`). If they need more, the oldest that no active job uses are removed.
Archives of other tenants stay. Tests: tests/attack/test_upload_floods.py.
"""

import asyncio
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from typing import Final

from libs.common.messages import PruneAsk
from libs.common.open_share import FREE_TIMES
from libs.common.state.needed_uploads import Uploads, of_jobs, of_models
from libs.common.transport.uploads import Space, Upload
from services.api_gateway.gateway import Gateway
from services.api_gateway.intents.prune_intents import old_uploads
from services.api_gateway.problems import Problem
from services.api_gateway.views.index import Place

# Each archive counts as at least this many bytes, which bounds the number of archives.
COUNTED_BYTES_MIN: Final = 64 << 10
# Jobs that are looked at before other requests are served.
SCAN_SLICE: Final = 500


@asynccontextmanager
async def room_for(
    gateway: Gateway, tenant: str, sha256: str, size: int
) -> AsyncIterator[Upload | None]:
    """Make room for an archive, which the body of the `with` block stores.

    The archive counts for the tenant at once. Equal archives wait for each other, and the body gets
    the one that was stored meanwhile; then it stores nothing. Several gateways may store archives
    of a tenant at the same time, each without knowing of the others. So the room is checked again
    afterwards. Then the archive stays if another request found it, or if an active job uses it.
    Raises Problem 507, and Unavailable.
    """
    turns, key, counted = gateway.shares.uploads, (tenant, sha256), max(COUNTED_BYTES_MIN, size)
    async with turns.stores(key, counted):
        known = await turns.find(gateway.uploads, key, gateway.clock.wall_ns())
        if known is not None:
            yield known
            return
        await _make(gateway, tenant, counted)
        yield None
        if _missing(gateway, await gateway.uploads.space(), tenant, counted) <= 0:
            return
        needed, now_ns = await _needed(gateway), gateway.clock.wall_ns()
        if await turns.undo(gateway.uploads, key, needed, now_ns):
            raise _full(tenant)


async def _make(gateway: Gateway, tenant: str, counted: int) -> None:
    """Remove as many old archives of the tenant as needed. Raises Problem 507."""
    space = await gateway.uploads.space()
    missing = _missing(gateway, space, tenant, counted)
    if missing <= 0:
        return
    own = [upload for upload in space.uploads if upload.tenant == tenant]
    needed, now_ns = await uploads_in_use(gateway), gateway.clock.wall_ns()
    old = old_uploads(own, needed, PruneAsk(keep_bytes=0), now_ns)
    if sum(map(_counted, old)) < missing:
        raise _full(tenant)
    for upload in old:
        if missing <= 0:
            return
        if await removed(gateway, upload, needed):
            missing -= _counted(upload)
    if missing > 0:
        raise _full(tenant)


async def uploads_in_use(gateway: Gateway) -> Uploads:
    """Return the archives that stay: those of active jobs and models, those that a request of this
    gateway found within the last hour, and those that it is storing.
    """
    needed, turns = await _needed(gateway), gateway.shares.uploads
    young = turns.young(gateway.clock.wall_ns())
    return needed | dict.fromkeys((*young, *turns.storing))


async def _needed(gateway: Gateway) -> Uploads:
    """Return the archives of active jobs and deployed models.

    Other requests are served between parts of the list. Jobs that are submitted meanwhile are at
    its end.
    """
    last, found = Place(0, 0), Uploads()
    while places := gateway.index.listed(last, SCAN_SLICE):
        jobs = (gateway.cluster.jobs.get(place.job_id) for place in places)
        found |= dict.fromkeys(of_jobs(job for job in jobs if job is not None))
        last = places[-1]
        await asyncio.sleep(0)
    return found | dict.fromkeys(of_models(gateway.cluster))


async def removed(gateway: Gateway, upload: Upload, needed: Container[tuple[str, str]]) -> bool:
    """Remove an archive; return False if it is in use. Raises Unavailable."""
    key, now_ns = (upload.tenant, upload.sha256), gateway.clock.wall_ns()
    return await gateway.shares.uploads.remove(gateway.uploads, key, needed, now_ns)


def _missing(gateway: Gateway, space: Space, tenant: str, counted: int) -> int:
    """Return by how many bytes the tenant's archives exceed its share.

    `counted` is the archive that is being stored, which may be in the bucket already.
    """
    held = {(each.tenant, each.sha256): _counted(each) for each in space.uploads}
    held |= gateway.shares.uploads.storing
    own = sum(size for (whose, _), size in held.items() if whose == tenant)
    free = space.bytes_max - (sum(held.values()) - counted)
    # Each byte that goes is also free then.
    share = -(-(own - FREE_TIMES * free) // (FREE_TIMES + 1))
    return max(share, counted - free)


def _counted(upload: Upload) -> int:
    return max(COUNTED_BYTES_MIN, upload.size_bytes)


def _full(tenant: str) -> Problem:
    return Problem(
        507,
        f"the uploads of tenant {tenant} that active jobs use or that were sent within the last "
        "hour fill the share of the bucket that one tenant may have now: end jobs, wait, remove "
        "uploads with `muster upload rm`, or ask an administrator to enlarge the bucket UPLOADS",
    )
