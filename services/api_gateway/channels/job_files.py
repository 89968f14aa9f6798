"""Reads a job's files from its node: the bytes of one file, or a folder as a tar archive that is
built while it is sent.

The gateway requests the next part when the client has taken the last one, so a slow client holds at
most two parts here and nothing on the node. An error after the first byte cuts the answer off; a
tar archive that was cut off is recognisably incomplete.
"""

import os
import tarfile
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from libs.common import facts as f
from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.messages.file_messages import (
    BUSY,
    FILE,
    LINK,
    MISSING,
    OUTSIDE,
    PRUNED,
    UNREADABLE,
    FileAsk,
    FilePart,
)
from libs.common.model import NodeId
from libs.common.state.cluster import Job
from services.api_gateway.access.slots import NODE
from services.api_gateway.gateway import Gateway
from services.api_gateway.problems import Problem

BLOCK: Final = tarfile.BLOCKSIZE
DEPTH_MAX: Final = 100
STATUS: Final = {MISSING: 404, PRUNED: 410, OUTSIDE: 422, UNREADABLE: 409, BUSY: 503}

_encode = msgspec.msgpack.Encoder().encode
_part = msgspec.msgpack.Decoder(FilePart)


class JobFiles:
    """The files of one attempt on one node."""

    def __init__(self, gateway: Gateway, job: Job, attempt: int, node_id: NodeId) -> None:
        self.gateway, self.job, self.attempt, self.node_id = gateway, job, attempt, node_id

    async def part(self, path: bytes, offset: int = 0, after: bytes = b"") -> FilePart:
        """Return a part of a file or folder.

        Raises Problem as the node says, or 503 without answer.
        """
        ask = FileAsk(
            job_id=self.job.job_id, attempt=self.attempt, path=path, offset=offset, after=after
        )
        settings = self.gateway.settings
        try:
            async with self.gateway.slots.of(NODE, self.job.tenant):
                answer = await self.gateway.bus.request(
                    subjects.ask_node(self.node_id, "files"), _encode(ask), settings.ask_ms / 1_000
                )
            found = _part.decode(answer)
        except (Unavailable, *f.UNDECODABLE) as error:
            raise Problem(
                503,
                (
                    f"node {self.node_id}, which has the files, does not answer ({error}): see its "
                    "state with `muster nodes`"
                ),
            ) from error
        if found.fault:
            raise Problem(STATUS.get(found.fault, 409), found.text)
        return found

    async def file(self, path: bytes, first: FilePart) -> AsyncGenerator[bytes, None]:
        """Yield as many bytes as the file had at first; a file that grows is cut there.

        Raises Problem if the file was replaced or became shorter.
        """
        sent, part = 0, first
        while sent < first.size_bytes:
            data = part.data[: first.size_bytes - sent]
            if not data or part.identity != first.identity:
                raise Problem(
                    409, f"{os.fsdecode(path)!r} changed while it was read: copy it again"
                )
            yield data
            sent += len(data)
            if sent < first.size_bytes:
                part = await self.part(path, sent)

    async def archive(self, path: bytes, first: FilePart) -> AsyncGenerator[bytes, None]:
        """Yield the folder as a tar archive."""
        async for piece in self._folder(path, b"", first, DEPTH_MAX):
            yield piece
        yield bytes(2 * BLOCK)

    async def _folder(
        self, path: bytes, name: bytes, page: FilePart, depth: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield the folder's content; `name` is its name in the archive."""
        if depth == 0:
            raise Problem(
                409,
                f"{os.fsdecode(path)!r} is more than {DEPTH_MAX} folders deep: copy parts of it",
            )
        while True:
            for each in page.names:
                below, shown = _joined(path, each.name), _joined(name, each.name)
                if each.kind == LINK:
                    yield _header(shown, tarfile.SYMTYPE, 0o777, target=each.target)
                elif (found := await self._part_or_none(below, each.kind)) is not None:
                    inner = (
                        self._file(below, shown, found)
                        if found.kind == FILE
                        else self._inner(below, shown, found, depth)
                    )
                    async for piece in inner:
                        yield piece
            if not page.more:
                return
            page = await self.part(path, after=page.last)

    async def _part_or_none(self, path: bytes, kind: str) -> FilePart | None:
        """Return the part; None if it is gone or was replaced since its folder was read.

        A running job changes its files.
        """
        try:
            found = await self.part(path)
        except Problem as problem:
            if problem.status == STATUS[MISSING]:
                return None
            raise
        return found if found.kind == kind else None

    async def _file(self, path: bytes, name: bytes, first: FilePart) -> AsyncGenerator[bytes, None]:
        yield _header(name, tarfile.REGTYPE, first.mode, first.size_bytes)
        async for piece in self.file(path, first):
            yield piece
        yield bytes(-first.size_bytes % BLOCK)

    async def _inner(
        self, path: bytes, name: bytes, first: FilePart, depth: int
    ) -> AsyncGenerator[bytes, None]:
        yield _header(name, tarfile.DIRTYPE, 0o755)
        async for piece in self._folder(path, name, first, depth - 1):
            yield piece


def _joined(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


def _header(name: bytes, kind: bytes, mode: int, size: int = 0, target: bytes = b"") -> bytes:
    member = tarfile.TarInfo(os.fsdecode(name))
    member.type, member.mode, member.size, member.linkname = kind, mode, size, os.fsdecode(target)
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
