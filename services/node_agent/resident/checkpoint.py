"""The SHA-256 of a checkpoint's files, each of which is read once as long as it stays the same.

A file is the same if its inode, size, and both of its times are: a user cannot set the time of
change. A file that changed a moment before it was read is read again. Files are opened as the user
of the model's owner. Tests: tests/unit/test_resident_checkpoint.py.
"""

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

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
PIECE_BYTES: Final = 8 << 20
# A folder may hold more than its devices get: other formats of the weights, other stages of a
# pipeline, weights before quantisation. A sparse file can be larger than all disks.
TIMES_MAX: Final = 64

# Device, inode, size, time of modification, time of change.
Identity = tuple[int, int, int, int, int]


class Known(msgspec.Struct, frozen=True):
    """The SHA-256 of a file that has this identity."""

    identity: Identity
    digest: str


_known = msgspec.json.Decoder(dict[str, Known])


class Checkpoints:
    """The files that were read, by path; `note` is the file that remembers them.

    Several threads may read at once.
    """

    def __init__(self, note: Path) -> None:
        self.note = note
        self._changing = threading.Lock()
        self._changed = False
        self.known: dict[str, Known] = {}
        with contextlib.suppress(OSError, msgspec.DecodeError):
            self.known = _known.decode(note.read_bytes())

    def read(
        self, order: KeepOrder, ids: Sequence[int], wanted: Callable[[], bool] = lambda: True
    ) -> dict[str, str]:
        """Return the SHA-256 of each file below the order's folder.

        Raises Differs if they are not the recorded ones, and Refused if one cannot be read, if they
        are too large for the order's devices, or as soon as they are not `wanted`.
        """
        sizes = trees.listed(order.weights, ids, follow=True)
        if not sizes:
            raise Refused(f"{order.weights} has no files")
        size, granted = sum(sizes.values()), sum(order.gpu_bytes.values())
        if granted and size > TIMES_MAX * granted:
            raise Refused(
                f"{order.weights} has {size} bytes, more than {TIMES_MAX} times the {granted} "
                "bytes that its devices have for it: name a folder with the model's weights alone"
            )
        try:
            files = {path: self._digest(f"{order.weights}/{path}", ids, wanted) for path in sizes}
        finally:
            self._write_note()
        check(files, order.files)
        return files

    def _digest(self, path: str, ids: Sequence[int], wanted: Callable[[], bool]) -> str:
        try:
            with acting_as(ids):
                descriptor = plain_file.opened(path)
        except OSError as error:
            raise Refused(f"{path} cannot be read: {error.strerror}") from error
        with open(descriptor, "rb", buffering=0) as stream:
            began_ns, identity = time.time_ns(), _identity(descriptor)
            known = self.known.get(path)
            if known is not None and known.identity == identity:
                return known.digest
            digest = hash_of(stream, identity[2], wanted)
            if _identity(descriptor) != identity:
                raise Refused(f"{path} changed while it was read: keep the model again")
        with self._changing:
            self._changed |= self.known.pop(path, None) is not None
            if began_ns - identity[-1] > SETTLED_NS:
                self.known[path] = Known(identity, digest)
                self._changed = True
        return digest

    def _write_note(self) -> None:
        """Remember the files for the next agent. On a full disk it reads them again."""
        with self._changing, contextlib.suppress(OSError):
            if not self._changed:
                return
            self._changed = False
            for path in list(self.known)[:-KNOWN_MAX]:
                del self.known[path]
            self.note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            synced_file.replace(self.note, msgspec.json.encode(self.known))


def hash_of(stream: BinaryIO, size: int, wanted: Callable[[], bool]) -> str:
    """Return the SHA-256 of the first `size` bytes. Raises Refused once it is not `wanted`."""
    digest, left = hashlib.sha256(), size
    while left and (piece := stream.read(min(PIECE_BYTES, left))):
        if not wanted():
            raise Refused("the weights are not wanted on this node any more")
        left -= len(piece)
        digest.update(piece)
    return digest.hexdigest()


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
