"""The archives of uploads that this node has verified, for its next jobs and for other nodes.

An archive is one file, named by its tenant and SHA-256, in a folder that only the agent can open.
The archives that were used last stay, up to a number of bytes. A new agent begins with none. Safe
for threads. Tests: tests/integration/test_peer_uploads.py.
"""

import hashlib
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from libs.common.errors import Refused
from libs.common.model import NodeId
from libs.common.safety.folder_walk import remove_tree

NAME_BYTES: Final = 8
OWNER: Final = 0o700


class Stage:
    """An archive that is being fetched; `nodes` gave parts of it, one after another."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        self.path, self.bytes_max = path, bytes_max
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115 - closed by `close`
        self.restart()

    def restart(self) -> None:
        """Begin again, without bytes."""
        self._file.truncate(0)
        self._file.seek(0)
        self.size, self._digest = 0, hashlib.sha256()
        self.nodes: dict[NodeId, None] = {}

    def write(self, data: bytes) -> None:
        """Add the next bytes. Raises Refused."""
        self.size += len(data)
        if self.size > self.bytes_max:
            raise Refused(
                f"its upload is over {self.bytes_max} bytes, which is this node's "
                "MUSTER_UPLOAD_BYTES"
            )
        self._digest.update(data)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    @property
    def sha256(self) -> str:
        """The SHA-256 of the bytes so far."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the file and remove it, unless the cache has adopted it."""
        self._file.close()
        self.path.unlink(missing_ok=True)


class UploadCache:
    """The archives below `folder`, at most `bytes_max` bytes, or one archive that is larger."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder, self.bytes_max = folder, bytes_max
        self._lock = threading.Lock()
        self._sizes: dict[tuple[str, str], int] = {}
        self._is_new = True

    @contextmanager
    def staged(self, bytes_max: int) -> Iterator[Stage]:
        """Yield a stage that is removed at the end. Raises Refused if it cannot be made."""
        with self._lock:
            if self._is_new:
                remove_tree(self.folder)
                self._is_new = False
            self.folder.mkdir(mode=OWNER, parents=True, exist_ok=True)
        stage = Stage(self.folder / f"stage-{secrets.token_hex(NAME_BYTES)}", bytes_max)
        try:
            yield stage
        finally:
            stage.close()

    def adopt(self, tenant: str, sha256: str, stage: Stage) -> bool:
        """Keep a staged archive if it has this SHA-256; return whether it has."""
        if stage.sha256 != sha256:
            return False
        with self._lock:
            stage.path.rename(self._path(tenant, sha256))
            self._sizes.pop((tenant, sha256), None)
            self._sizes[tenant, sha256] = stage.size
            while sum(self._sizes.values()) > self.bytes_max and len(self._sizes) > 1:
                oldest = next(iter(self._sizes))
                del self._sizes[oldest]
                self._path(*oldest).unlink(missing_ok=True)
        return True

    def opened(self, tenant: str, sha256: str) -> BinaryIO | None:
        """Return the archive, open, or None. It can be read to its end even if it leaves."""
        with self._lock:
            size = self._sizes.pop((tenant, sha256), None)
            if size is None:
                return None
            try:
                found = open(self._path(tenant, sha256), "rb")  # noqa: SIM115 - the caller closes
            except OSError:
                return None
            self._sizes[tenant, sha256] = size
            return found

    def _path(self, tenant: str, sha256: str) -> Path:
        """Return the path of an archive. Neither part of its name has a dot or a slash."""
        return self.folder / f"{tenant}.{sha256}"
