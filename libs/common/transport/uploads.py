"""Directories that jobs bring along: how an archive of one is named, kept and asked for.

The bytes never pass the log.

An upload is a tar archive named by the SHA-256 of its bytes, kept for one tenant.
`objects_nats.NatsUploads` is the real store, `MemoryUploads` its twin; both are held to
tests/integration/test_upload_store.py. A node asks a gateway for the pieces, and is given those of
the job that it is about to start and no others.
"""

import re
from io import BufferedIOBase
from typing import Final, NamedTuple, Protocol

import msgspec

from libs.common.model import JobId

SHA256: Final = re.compile(r"[0-9a-f]{64}")
# Of an archive, in one message; well below what a server takes (`bus.MESSAGE_BYTES_MAX`).
PIECE_BYTES: Final = 512 << 10


class Bounds(NamedTuple):
    """Of an archive: its bytes, and how many files and folders it holds."""

    size_bytes: int = 256 << 20
    files: int = 50_000


class Upload(msgspec.Struct, frozen=True):
    """One that is kept. `sent_at` is RFC 3339."""

    tenant: str
    sha256: str
    size_bytes: int
    sent_at: str


class Piece(NamedTuple):
    """Some bytes of an archive and the mark to ask for the following ones with."""

    mark: int
    data: bytes


class UploadAsk(msgspec.Struct, frozen=True):
    """agent -> gateway: the piece behind `mark` (0: the first) of what this attempt
    brings along.
    """

    job_id: JobId
    attempt: int
    mark: int = 0


class UploadPiece(msgspec.Struct, frozen=True):
    """`size_bytes` is the whole archive's size; `refused` says why there is nothing."""

    size_bytes: int = 0
    mark: int = 0
    data: bytes = b""
    refused: str = ""


class UploadStore(Protocol):
    """Archives by tenant and hash. All raise errors.Unavailable."""

    async def put(self, tenant: str, sha256: str, archive: BufferedIOBase) -> None:
        """Keep it whole; the caller has verified the hash. Raises Refused when there is no room."""
        ...

    async def find(self, tenant: str, sha256: str) -> Upload | None:
        """None when that tenant has sent no such archive, or it was removed."""
        ...

    async def piece(self, tenant: str, sha256: str, mark: int) -> Piece | None:
        """The piece behind `mark`; None when the archive, or that piece of it, is not there."""
        ...

    async def remove(self, tenant: str, sha256: str) -> None:
        """Keep it no longer. Harmless when it is not there."""
        ...

    async def listed(self) -> list[Upload]:
        """All of all tenants, by tenant and hash."""
        ...


class MemoryUploads:
    """The in-memory twin of the store."""

    def __init__(self) -> None:
        self.archives: dict[tuple[str, str], bytes] = {}

    async def put(self, tenant: str, sha256: str, archive: BufferedIOBase) -> None:
        self.archives[tenant, sha256] = archive.read()

    async def find(self, tenant: str, sha256: str) -> Upload | None:
        found = self.archives.get((tenant, sha256))
        return (
            Upload(tenant, sha256, len(found), "2026-01-01T00:00:00+00:00")
            if found is not None
            else None
        )

    async def piece(self, tenant: str, sha256: str, mark: int) -> Piece | None:
        data = self.archives.get((tenant, sha256), b"")[mark : mark + PIECE_BYTES]
        return Piece(mark + len(data), data) if data else None

    async def remove(self, tenant: str, sha256: str) -> None:
        self.archives.pop((tenant, sha256), None)

    async def listed(self) -> list[Upload]:
        return [
            found for each in sorted(self.archives) if (found := await self.find(*each)) is not None
        ]
