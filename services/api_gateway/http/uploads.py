"""/v1/uploads: directories that jobs bring along, each sent once by its tenant as an archive named
by its SHA-256.

What comes is kept in a file without a name until its hash is verified: a part, or something else
than was named, is never kept.
"""

import asyncio
import hashlib
import tempfile
from io import BufferedRandom
from typing import Final

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from libs.common.errors import Refused
from libs.common.settings.settings import Settings
from libs.common.transport.uploads import SHA256, Upload
from services.api_gateway.access import room
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.answer_types import UploadShown
from services.api_gateway.http.queries import (
    Query,
    answer,
    documented,
    gateway_of,
    principal_of,
    read,
)
from services.api_gateway.problems import Problem

# Files without a name that may be open at once; whoever comes then is told to come again.
RECEIVING_MAX: Final = 16
WRITE_BYTES: Final = 1 << 20
# A client that sends nothing for so long is gone.

router = APIRouter(tags=["jobs"])


@router.get("/v1/uploads/{sha256}", openapi_extra=documented(Query))
async def find(request: Request, sha256: str) -> Response:
    """Whether the asker's tenant has sent this archive, and it is still kept."""
    read(request, Query)
    found = await kept(gateway_of(request), principal_of(request).tenant, sha256)
    if found is None:
        raise Problem(
            404, f"the tenant has no upload {sha256[:64]}: PUT it first, or muster run --upload DIR"
        )
    return answer(_shown(found))


@router.put("/v1/uploads/{sha256}", status_code=201, openapi_extra=documented(Query))
async def send(request: Request, sha256: str) -> Response:
    """Keep a tar archive for the asker's tenant. Its bytes must have the SHA-256 that names it."""
    read(request, Query)
    gateway, tenant = gateway_of(request), principal_of(request).tenant
    known = await kept(gateway, tenant, sha256)
    if known is not None:
        return answer(_shown(known))
    gateway.check_room("an upload", room.SUBMISSIONS)
    if gateway.receiving >= RECEIVING_MAX:
        raise Problem(503, f"{RECEIVING_MAX} uploads are being received: try again in a moment")
    gateway.receiving += 1
    try:
        with tempfile.TemporaryFile() as file:
            await _receive(request, file, sha256, gateway.settings)
            await _keep(gateway, tenant, sha256, file)
    finally:
        gateway.receiving -= 1
    found = await kept(gateway, tenant, sha256)
    assert found is not None, "it was put a moment ago"
    return answer(_shown(found), 201)


async def kept(gateway: Gateway, tenant: str, sha256: str) -> Upload | None:
    """Raises Refused for what is no hash, and Unavailable."""
    if SHA256.fullmatch(sha256) is None:
        raise Refused(f"upload: {sha256[:64]!r} is no SHA-256: give 64 hexadecimal digits")
    return await gateway.uploads.find(tenant, sha256)


async def check(gateway: Gateway, tenant: str, sha256: str) -> None:
    """What a job says of its upload. Raises Refused."""
    if sha256 and await kept(gateway, tenant, sha256) is None:
        raise Refused(
            f"upload: tenant {tenant} has sent no {sha256[:12]}: muster run --upload DIR sends it"
        )


async def _receive(request: Request, file: BufferedRandom, sha256: str, settings: Settings) -> None:
    """All of the body, verified. Raises Problem and Refused."""
    digest, size, waiting = hashlib.sha256(), 0, bytearray()
    pieces = aiter(request.stream())
    try:
        while True:
            async with asyncio.timeout(settings.model_body_ms / 1_000):
                piece = await anext(pieces, None)
            waiting += piece or b""
            if size + len(waiting) > settings.upload_bytes:
                raise Problem(
                    413,
                    (
                        f"the upload is over {settings.upload_bytes} bytes: name what is not "
                        "needed in .musterignore"
                    ),
                )
            if piece is None or len(waiting) >= WRITE_BYTES:
                data, waiting = bytes(waiting), bytearray()
                size += len(data)
                await asyncio.to_thread(_take, file, digest, data)
            if piece is None:
                break
    except (ClientDisconnect, TimeoutError) as error:
        raise Problem(
            400, f"the upload broke off after {size} bytes: nothing was kept, send it again"
        ) from error
    if digest.hexdigest() != sha256:
        raise Refused(
            f"the {size} bytes that came have the SHA-256 {digest.hexdigest()}, not the one "
            "that names them: nothing was kept"
        )


def _take(file: BufferedRandom, digest: "hashlib._Hash", data: bytes) -> None:
    digest.update(data)
    file.write(data)


async def _keep(gateway: Gateway, tenant: str, sha256: str, file: BufferedRandom) -> None:
    """To its end even when the request is given up: a put that is cut off would leave its pieces
    behind.
    """
    file.seek(0)
    putting = asyncio.ensure_future(gateway.uploads.put(tenant, sha256, file))
    try:
        await asyncio.shield(putting)
    except asyncio.CancelledError:
        await asyncio.wait((putting,))
        raise


def _shown(found: Upload) -> UploadShown:
    return UploadShown(found.sha256, found.size_bytes, found.sent_at)
