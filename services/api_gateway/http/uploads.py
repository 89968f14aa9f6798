"""/v1/uploads: directories of jobs, sent once per tenant as an archive named by its SHA-256.

The gateway keeps the bytes in an unnamed file until their hash is verified, so that a partial or
wrong archive is never stored.
"""

import asyncio
import hashlib
import sys
import tempfile
from contextlib import ExitStack
from functools import partial
from io import BufferedRandom
from typing import Final

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from libs.common.errors import Refused
from libs.common.open_share import BUSY_S, TENANT_FULL
from libs.common.settings.settings import Settings
from libs.common.transport.uploads import SHA256, Upload
from services.api_gateway.access import room
from services.api_gateway.access.shares import RECEIVING_MAX
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.answer_types import UploadShown
from services.api_gateway.http.queries import (
    PageQuery,
    Query,
    answer,
    answer_page,
    documented,
    gateway_of,
    principal_of,
    read,
    settled,
)
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.http.upload_room import room_for
from services.api_gateway.intents.prune_intents import job_with_upload, model_with_upload
from services.api_gateway.problems import Problem
from services.api_gateway.views.index import Place

WRITE_BYTES: Final = 1 << 20
# Jobs that are looked at before other requests get their turn.
SCAN_SLICE: Final = 500
# Behind the last place of a list of jobs.
LAST: Final = Place(sys.maxsize, 0)

router = APIRouter(tags=["jobs"])


@router.get("/v1/uploads", openapi_extra=documented(PageQuery))
async def list_uploads(request: Request) -> Response:
    """List the uploads of the caller's tenant, sorted by SHA-256."""
    gateway, query = await settled(request, PageQuery)
    tenant = principal_of(request).tenant
    space = await gateway.uploads.space()
    own = [upload for upload in space.uploads if upload.tenant == tenant]
    return await answer_page(
        name="uploads",
        values=sorted(own, key=lambda upload: upload.sha256),
        query=query,
        seq=gateway.cluster.seq,
        name_of=lambda upload: upload.sha256,
        show=_upload_shown,
    )


@router.get("/v1/uploads/{sha256}", openapi_extra=documented(Query))
async def find(request: Request, sha256: str) -> Response:
    """Show an upload of the own tenant; 404 if it does not exist."""
    gateway, _ = await settled(request, Query)
    found = await kept(gateway, principal_of(request).tenant, sha256)
    if found is None:
        raise _unknown(sha256)
    return answer(_upload_shown(found))


@router.put("/v1/uploads/{sha256}", status_code=201, openapi_extra=documented(Query))
async def send(request: Request, sha256: str) -> Response:
    """Store a tar archive for the own tenant. Its bytes must have the SHA-256 in its name."""
    read(request, Query)
    gateway, tenant = gateway_of(request), principal_of(request).tenant
    known = await kept(gateway, tenant, sha256)
    if known is not None:
        return answer(_upload_shown(known))
    gateway.check_room("an upload", room.SUBMISSIONS)
    receiving = gateway.shares.receiving
    if refused := receiving.take(tenant):
        raise _too_many(tenant, refused)
    try:
        with tempfile.TemporaryFile() as file:
            await _receive(request, file, sha256, gateway.settings)
            async with room_for(gateway, tenant, sha256, file.tell()) as equal:
                if equal is None:
                    await _keep(gateway, tenant, sha256, file)
    finally:
        receiving.give_back(tenant)
    found = await gateway.uploads.find(tenant, sha256)  # it is young by its time in the bucket
    if found is None:
        raise Problem(503, "another request removed the upload while it was stored: send it again")
    return answer(_upload_shown(found), 201)


@router.delete("/v1/uploads/{sha256}", openapi_extra=documented(Query))
async def remove(request: Request, sha256: str) -> Response:
    """Remove an upload of the own tenant.

    An upload that an active job or a deployed model uses is not removed (409).
    """
    gateway, _ = await settled(request, Query)
    tenant = principal_of(request).tenant
    _check_name(sha256)
    found = await gateway.uploads.find(tenant, sha256)
    if found is None:
        raise Problem(
            404,
            f"upload {sha256} does not exist in this tenant: it was removed already, or the "
            "directory changed since it was sent; give the SHA-256 that `muster describe JOB` "
            "shows",
        )
    turns, unused = gateway.shares.uploads, partial(_check_unused, gateway, tenant, sha256)
    if not await turns.discard(gateway.uploads, (tenant, sha256), unused):
        text = f"another request stores, uses or removes upload {sha256} now: try again"
        raise Problem(409, text)
    return answer(_upload_shown(found))


async def _check_unused(gateway: Gateway, tenant: str, sha256: str) -> None:
    """Raise Problem 409 if an active job or a deployed model of the tenant uses the upload.

    First the gateway folds all that the log has now, so it knows each job that any gateway has
    acknowledged by now.
    """
    _, last = await gateway.log.bounds()
    await gateway.settle(last)
    if user := await _user_of(gateway, tenant, sha256):
        text = f"{user} uses upload {sha256}: cancel the job or undeploy the model first"
        raise Problem(409, text)


async def _user_of(gateway: Gateway, tenant: str, sha256: str) -> str:
    """Return an active job or a deployed model that uses the upload; empty if none does.

    The newest jobs come first. Other requests are served between parts of the list.
    """
    first = LAST
    while places := gateway.index.listed_back(first, SCAN_SLICE, tenant):
        jobs = (gateway.cluster.jobs.get(place.job_id) for place in places)
        if user := job_with_upload(jobs, sha256):
            return user
        first = places[-1]
        await asyncio.sleep(0)
    return model_with_upload(gateway.cluster, tenant, sha256)


async def kept(gateway: Gateway, tenant: str, sha256: str) -> Upload | None:
    """Return the upload; None if it is not stored.

    Pruning spares it for an hour from now on. Raises Refused and Unavailable.
    """
    _check_name(sha256)
    now_ns = gateway.clock.wall_ns()
    return await gateway.shares.uploads.find(gateway.uploads, (tenant, sha256), now_ns)


async def check(gateway: Gateway, tenant: str, sha256: str, uses: ExitStack) -> None:
    """Check that a job's upload exists. Raises Refused.

    This gateway does not remove it until `uses` ends: after the job is recorded and folded.
    """
    if not sha256:
        return
    uses.enter_context(gateway.shares.uploads.uses((tenant, sha256)))
    if await kept(gateway, tenant, sha256) is None:
        raise Refused(
            f"upload: tenant {tenant} has no upload {sha256[:12]}: send it with PUT /v1/uploads, "
            "or use `muster run --upload DIR`"
        )


def _check_name(sha256: str) -> None:
    if SHA256.fullmatch(sha256) is None:
        raise Refused(f"upload: {sha256[:64]!r} is not a SHA-256: give 64 hexadecimal digits")


def _unknown(sha256: str) -> Problem:
    text = f"upload {sha256[:64]} does not exist in this tenant: PUT it first, or use"
    return Problem(404, f"{text} `muster run --upload DIR`")


def _too_many(tenant: str, refused: str) -> Problem:
    """Return the problem of an upload for which its tenant, or the gateway, has no place left."""
    if refused == TENANT_FULL:
        text = (
            f"this gateway receives as many uploads of tenant {tenant} as one tenant may send now "
            f"(all tenants: {RECEIVING_MAX}): wait until one is complete"
        )
        return Problem(429, text, retry_after_s=BUSY_S)
    text = f"this gateway receives {RECEIVING_MAX} uploads, the maximum: try again in a moment"
    return Problem(503, text, retry_after_s=BUSY_S)


async def _receive(request: Request, file: BufferedRandom, sha256: str, settings: Settings) -> None:
    """Read and verify the whole body.

    Each WRITE_BYTES must come within MUSTER_MODEL_BODY_MS, so that no upload holds its place for
    ever. Raises Problem and Refused.
    """
    digest, size, waiting = hashlib.sha256(), 0, bytearray()
    pieces, loop = aiter(request.stream()), asyncio.get_running_loop()
    within_s = settings.model_body_ms / 1_000
    until_s = loop.time() + within_s
    try:
        while True:
            async with asyncio.timeout_at(until_s):
                piece = await anext(pieces, None)
            waiting += piece or b""
            if size + len(waiting) > settings.upload_bytes:
                raise Problem(
                    413,
                    (
                        f"the upload is larger than {settings.upload_bytes} bytes: list files that "
                        "the job does not need in .musterignore"
                    ),
                )
            if piece is None or len(waiting) >= WRITE_BYTES:
                data, waiting = bytes(waiting), bytearray()
                size += len(data)
                await asyncio.to_thread(_take, file, digest, data)
                until_s = loop.time() + within_s
            if piece is None:
                break
    except ClientDisconnect as error:
        raise Problem(
            400, f"the upload ended after {size} bytes and was not stored: send it again"
        ) from error
    except TimeoutError as error:
        raise Problem(
            408,
            f"the upload was not stored: after {size} bytes, neither its end nor {WRITE_BYTES} "
            f"bytes more came within {within_s:g} s: send it faster",
        ) from error
    if digest.hexdigest() != sha256:
        raise Refused(
            f"the upload was not stored: its {size} bytes have the SHA-256 {digest.hexdigest()}, "
            f"not {sha256}: send it again"
        )


def _take(file: BufferedRandom, digest: "hashlib._Hash", data: bytes) -> None:
    digest.update(data)
    file.write(data)


async def _keep(gateway: Gateway, tenant: str, sha256: str, file: BufferedRandom) -> None:
    """Store the archive to its end, even if the request is cancelled.

    A put that is cut off would leave its pieces behind.
    """
    file.seek(0)
    putting = asyncio.ensure_future(gateway.uploads.put(tenant, sha256, file))
    try:
        await asyncio.shield(putting)
    except Refused as error:
        raise Problem(507, str(error)) from error
    except asyncio.CancelledError:
        await asyncio.wait((putting,))
        raise


def _upload_shown(found: Upload) -> UploadShown:
    return UploadShown(found.sha256, found.size_bytes, found.sent_at)
