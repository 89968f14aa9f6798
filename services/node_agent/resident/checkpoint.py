"""The SHA-256 of a checkpoint's files, each of which is read once as long as it stays the same.

A file is the same if its inode, size, and both of its times are: a user cannot set the time of
change. A file that changed a moment before it was read is read again. Files are opened as the user
of the model's owner. Tests: tests/unit/test_resident_checkpoint.py.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.messages import KeepOrder
from libs.common.safety import plain_file
from services.node_agent.directories.acting_as import acting_as
from services.node_agent.machine import synced_file
from services.node_agent.resident import trees
from services.node_agent.resident.trees import Differs

# Times of files are as coarse as the kernel's clock tick; this is far above it.
SETTLED_NS: Final = 2 * 10**9
# Files that are remembered; the oldest are forgotten first.
KNOWN_MAX: Final = 4_096

# Device, inode, size, time of modification, time of change.
Identity = tuple[int, int, int, int, int]


class Known(msgspec.Struct, frozen=True):
    """The SHA-256 of a file that has this identity."""

    identity: Identity
    digest: str


_known = msgspec.json.Decoder(dict[str, Known])


class Checkpoints:
    """The files that were read, by path; `note` is the file that remembers them."""

    def __init__(self, note: Path) -> None:
        self.note = note
        self.known: dict[str, Known] = {}
        with contextlib.suppress(OSError, msgspec.DecodeError):
            self.known = _known.decode(note.read_bytes())

    def read(self, order: KeepOrder, ids: Sequence[int]) -> dict[str, str]:
        """Return the SHA-256 of each file below the order's folder.

        Raises Differs if they are not the recorded ones, and Refused if one cannot be read.
        """
        paths = trees.listed(order.weights, ids, follow=True)
        if not paths:
            raise Refused(f"{order.weights} has no files")
        before = dict(self.known)
        files = {path: self._digest(f"{order.weights}/{path}", ids) for path in paths}
        if self.known != before:
            self._write_note()
        check(files, order.files)
        return files

    def _digest(self, path: str, ids: Sequence[int]) -> str:
        try:
            with acting_as(ids):
                descriptor = plain_file.opened(path)
        except OSError as error:
            raise Refused(f"{path} cannot be read: {error.strerror}") from error
        with open(descriptor, "rb") as stream:
            began_ns, identity = time.time_ns(), _identity(descriptor)
            known = self.known.get(path)
            if known is not None and known.identity == identity:
                return known.digest
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if _identity(descriptor) != identity:
                raise Refused(f"{path} changed while it was read: keep the model again")
        self.known.pop(path, None)
        if began_ns - identity[-1] > SETTLED_NS:
            self.known[path] = Known(identity, digest)
        return digest

    def _write_note(self) -> None:
        for path in list(self.known)[:-KNOWN_MAX]:
            del self.known[path]
        self.note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        synced_file.replace(self.note, msgspec.json.encode(self.known))


def _identity(descriptor: int) -> Identity:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def check(files: Mapping[str, str], recorded: Mapping[str, str]) -> None:
    """Raise Differs unless these files are the recorded ones; none are recorded yet: all are."""
    for path in sorted({**files, **recorded}) if recorded else ():
        if files.get(path) != recorded.get(path):
            raise Differs(
                f"{path} has the SHA-256 {files.get(path, 'none')[:12]}, and "
                f"{recorded.get(path, 'none')[:12]} is recorded"
            )
