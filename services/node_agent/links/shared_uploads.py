"""Archives of uploads on this node, as other nodes read them that run a job with the same upload.

A gateway asks for the token, after it has checked that the dialling node runs such a job of that
tenant. The grant names tenant and SHA-256, and nothing else can be read with it. Tests:
tests/attack/test_peer_uploads.py.
"""

import os
from contextlib import closing
from typing import Final

from libs.common.messages.file_messages import (
    FILE,
    MISSING,
    OUTSIDE,
    PART_BYTES,
    UNREADABLE,
    FilePart,
)
from libs.common.messages.link_messages import LinkAsk
from services.node_agent.jobs.files import Fault
from services.node_agent.uploads.cache import UploadCache

# The one name that a session can ask for.
ARCHIVE: Final = b"archive"


class SharedUploads:
    """The archives in this node's cache."""

    def __init__(self, node_id: str, cache: UploadCache) -> None:
        self.node_id, self.cache = node_id, cache

    def check(self, ask: LinkAsk) -> None:
        """Raise Fault unless this node has the archive of that tenant."""
        found = self.cache.opened(ask.tenant, ask.upload)
        if found is None:
            raise self._missing(ask)
        found.close()

    def part(self, ask: LinkAsk, path: bytes, offset: int) -> FilePart:
        """Return one part of the granted archive, or the fault."""
        if path != ARCHIVE:
            return FilePart(fault=OUTSIDE, text=f"ask for {ARCHIVE.decode()!r}")
        found = self.cache.opened(ask.tenant, ask.upload)
        if found is None:
            fault = self._missing(ask)
            return FilePart(fault=fault.word, text=str(fault))
        with closing(found):
            try:
                status = os.fstat(found.fileno())
                return FilePart(
                    kind=FILE,
                    size_bytes=status.st_size,
                    identity=f"{status.st_dev}.{status.st_ino}",
                    data=os.pread(found.fileno(), PART_BYTES, offset),
                )
            except OSError as error:
                text = f"the archive cannot be read: {error.strerror}"
                return FilePart(fault=UNREADABLE, text=text)

    def _missing(self, ask: LinkAsk) -> Fault:
        return Fault(
            MISSING,
            f"node {self.node_id} has no upload {ask.upload[:12]!r} of tenant {ask.tenant[:64]!r}",
        )
