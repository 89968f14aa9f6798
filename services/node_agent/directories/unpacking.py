"""Unpacks a job's upload into the attempt's directory, after its SHA-256 was verified.

Disk work runs in threads of its own, so neither heartbeats nor other starts wait for it. The
archive is a file without a name. The attempt's directory has no marker yet: the next agent removes
what a killed one left (`job_directories.py`). Tests: tests/integration/test_agent_uploads.py.
"""

import asyncio
import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from io import BufferedRandom
from pathlib import Path
from typing import Final

from libs.common.errors import Refused
from libs.common.safety.unpacking import unpack
from libs.common.transport.uploads import Bounds

# The job's working directory, within the attempt's directory.
FILES: Final = "files"
AT_ONCE: Final = 2

Wanted = Callable[[], bool]


class Unpacking:
    """The unpacking of uploads on one agent."""

    def __init__(self, state_dir: Path, bounds: Bounds) -> None:
        self.state_dir, self.bounds = state_dir, bounds
        self.threads = ThreadPoolExecutor(AT_ONCE, "upload")
        self.places = asyncio.Semaphore(AT_ONCE)
        self.closed = False

    def close(self) -> None:
        """Give up what is being unpacked, at its next file."""
        self.closed = True
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def unpack(
        self, job_dir: Path, sha256: str, pieces: AsyncIterator[bytes], wanted: Wanted
    ) -> str:
        """Unpack an upload and return the directory.

        Raises Refused, also if the disk is full or if the job is not wanted any more: a stopped job
        never starts.
        """

        def go_on() -> bool:
            return not self.closed and wanted()

        try:
            async with self.places:
                with tempfile.TemporaryFile(dir=self.state_dir) as archive:
                    await self._take(archive, sha256, pieces, go_on)
                    await self._run(_unpack, archive, job_dir / FILES, self.bounds.files, go_on)
        except OSError as error:
            raise Refused(
                f"its upload cannot be kept on this node: {error.strerror or error}"
            ) from error
        if not wanted():
            raise Refused("it was stopped before it started")
        return str(job_dir / FILES)

    async def _take(
        self, archive: BufferedRandom, sha256: str, pieces: AsyncIterator[bytes], go_on: Wanted
    ) -> None:
        digest, size = hashlib.sha256(), 0

        def write(data: bytes) -> None:
            digest.update(data)
            archive.write(data)

        async for piece in pieces:
            size += len(piece)
            if size > self.bounds.size_bytes:
                raise Refused(
                    f"its upload is over {self.bounds.size_bytes} bytes, which is this "
                    "node's MUSTER_UPLOAD_BYTES"
                )
            if not go_on():
                raise Refused("it was stopped before it started")
            await self._run(write, piece)
        if digest.hexdigest() != sha256:
            raise Refused(
                f"its upload is broken: the {size} bytes that came have another SHA-256 than "
                f"{sha256[:12]}"
            )

    async def _run(self, work: Callable[..., None], *arguments: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self.threads, work, *arguments)


def _unpack(archive: BufferedRandom, folder: Path, files_max: int, go_on: Wanted) -> None:
    archive.seek(0)
    os.makedirs(folder.parent, mode=0o700, exist_ok=True)
    unpack(archive, folder, files_max, go_on)
