"""Uploads: the directories that jobs bring along, as archives, and the messages to read them.

An upload is a tar archive of one tenant, named by the SHA-256 of its bytes. Its bytes never pass
the log. `uploads_nats.NatsUploads` is the real store, `MemoryUploads` its twin;
tests/integration/test_upload_store.py runs over both. A node asks a gateway for the pieces, and
gets only those of the job that it is about to start.
"""

import re
from io import BufferedIOBase
from typing import Final, NamedTuple, Protocol

import msgspec

from libs.common.messages.link_messages import LinkOffer
from libs.common.model import JobId, NodeId

SHA256: Final = re.compile(r"[0-9a-f]{64}")
# Bytes of an archive in one message; well below the server's limit (`bus.MESSAGE_BYTES_MAX`).
PIECE_BYTES: Final = 512 << 10
# An archive up to this size comes from a gateway: it is there before a node is found.
SMALL_BYTES: Final = 4 << 20


class Bounds(NamedTuple):
    """The bounds of an archive: its size, and its number of files and folders."""

    size_bytes: int = 256 << 20
    files: int = 50_000


class Upload(msgspec.Struct, frozen=True):
    """A stored upload. `sent_at` is in RFC 3339."""

    tenant: str
    sha256: str
    size_bytes: int
    sent_at: str


class Piece(NamedTuple):
    """Some bytes of an archive, and the mark with which to request the next ones."""

    mark: int
    data: bytes


class Space(NamedTuple):
    """All archives in a store, and the largest number of bytes that it stores."""

    uploads: list[Upload]
    bytes_max: int


class UploadAsk(msgspec.Struct, frozen=True):
    """agent -> gateway: request the piece behind `mark` of this attempt's upload; 0: the first.

    With `peers` the gateway may name another node instead, or let the agent wait for one. `avoided`
    are nodes that failed it a while ago.
    """

    job_id: JobId
    attempt: int
    mark: int = 0
    peers: bool = False
    avoided: tuple[NodeId, ...] = ()


class UploadPiece(msgspec.Struct, frozen=True):
    """gateway -> agent: a piece. `size_bytes` is the whole archive's; `refused` is the fault.

    With a `token` it is no piece: the node `node_id` has the archive, and takes a link at `address`
    over the transport of `offer`. `waits`: a node will have it soon. `silent` are nodes that gave
    the gateway no token.
    """

    size_bytes: int = 0
    mark: int = 0
    data: bytes = b""
    refused: str = ""
    node_id: NodeId = NodeId("")
    address: str = ""
    token: bytes = b""
    offer: LinkOffer = LinkOffer()
    waits: bool = False
    silent: tuple[NodeId, ...] = ()


class UploadStore(Protocol):
    """Archives by tenant and hash. All methods raise errors.Unavailable."""

    async def put(self, tenant: str, sha256: str, archive: BufferedIOBase) -> None:
        """Store an archive whose hash the caller has verified.

        Raises Refused if there is no space.
        """
        ...

    async def find(self, tenant: str, sha256: str) -> Upload | None:
        """Return the tenant's upload; None if there is none, or it was removed."""
        ...

    async def piece(self, tenant: str, sha256: str, mark: int) -> Piece | None:
        """Return the piece behind `mark`; None if the archive or the piece does not exist."""
        ...

    async def remove(self, tenant: str, sha256: str) -> None:
        """Remove the archive if it exists."""
        ...

    async def listed(self) -> list[Upload]:
        """Return all uploads, sorted by tenant and hash."""
        ...

    async def space(self) -> Space:
        """Return all uploads and the store's size. Read only what is new to this process."""
        ...


class MemoryUploads:
    """A store in memory."""

    def __init__(self, bytes_max: int = 4 << 30) -> None:
        self.bytes_max = bytes_max
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

    async def space(self) -> Space:
        return Space(await self.listed(), self.bytes_max)
