"""Writes a copied file or folder below a job's working directory, whole or not at all.

The agent writes under a temporary name beside the target and renames it at the end. Each step acts
as the job's user, is relative to an open folder and follows no link, so the job gains nothing
from links that it makes meanwhile, and its quotas hold. Tests: tests/integration/test_copies.py,
tests/attack/test_copies.py.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from libs.common.messages.file_messages import UNWRITABLE
from libs.common.model import NodeId
from libs.common.safety.folder_walk import entered, remove_below
from services.node_agent.directories.acting_as import acting_as
from services.node_agent.jobs.files import Fault, opened

TEMPORARY: Final = ".muster-copy-"
CREATED: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# No group or other user may write what was copied, and no set-user-id bit is copied.
MODE: Final = 0o755
OWNER: Final = 0o700


class Landing:
    """One target: the open folder `holder`, and the name that the copy will have there.

    `ids` are those of the job's user (`acting_as`), `placed` is the copy's path in the working
    directory. All methods raise Fault.
    """

    def __init__(self, node_id: NodeId, ids: Sequence[int], holder: int, placed: bytes) -> None:
        self.node_id, self.ids, self.holder, self.placed = node_id, ids, holder, placed
        self.name = os.path.basename(placed)

    def close(self) -> None:
        """Close the folder."""
        os.close(self.holder)

    @contextmanager
    def acting(self, name: bytes) -> Iterator[None]:
        """Act as the job's user; turn an error of the system into a Fault that names the file."""
        try:
            with acting_as(self.ids):
                yield
        except OSError as error:
            shown, why = name.decode("utf-8", "backslashreplace"), error.strerror or error
            raise Fault(UNWRITABLE, f"node {self.node_id} cannot write {shown!r}: {why}") from error

    @contextmanager
    def whole(self, copy: str, is_folder: bool) -> Iterator[bytes]:
        """Yield a temporary name in `holder`, and rename what the body makes there.

        If the body fails, nothing is left.
        """
        temporary, is_done = (TEMPORARY + copy).encode(), False
        self._check_free(is_folder)
        try:
            yield temporary
            self._check_free(is_folder)
            with self.acting(self.name):
                os.rename(temporary, self.name, src_dir_fd=self.holder, dst_dir_fd=self.holder)
            is_done = True
        finally:
            if not is_done:
                with contextlib.suppress(OSError), acting_as(self.ids):
                    remove_below(self.holder, os.fsdecode(temporary))

    def _check_free(self, is_folder: bool) -> None:
        """Raise Fault if the target exists, unless a file replaces it."""
        with self.acting(self.name):
            try:
                mode = os.stat(self.name, dir_fd=self.holder, follow_symlinks=False).st_mode
            except FileNotFoundError:
                return
        if is_folder or stat.S_ISDIR(mode):
            shown = self.name.decode("utf-8", "backslashreplace")
            raise Fault(
                UNWRITABLE,
                f"{shown!r} exists already on node {self.node_id}: remove it, or choose another "
                "name",
            )

    @contextmanager
    def folder(self, holder: int, name: bytes) -> Iterator[int]:
        """Make a folder and yield it, open."""
        with self.acting(name):
            os.mkdir(name, OWNER, dir_fd=holder)
            made = entered(os.fsdecode(name), holder)
        try:
            yield made
            with self.acting(name):
                os.fchmod(made, MODE)
        finally:
            os.close(made)

    @contextmanager
    def file(self, holder: int, name: bytes, mode: int, size: int) -> Iterator[Callable[..., None]]:
        """Make a file for `size` bytes and yield the function that writes its next bytes."""
        with self.acting(name):
            made = os.open(name, CREATED, 0o600, dir_fd=holder)
        try:
            self._check_room(made, name, size)

            def write(data: bytes) -> None:
                with self.acting(name):
                    view = memoryview(data)
                    while view:
                        view = view[os.write(made, view) :]

            yield write
            with self.acting(name):
                os.fchmod(made, mode & MODE)
        finally:
            os.close(made)

    def link(self, holder: int, name: bytes, target: bytes) -> None:
        """Make a symbolic link to `target`."""
        with self.acting(name):
            os.symlink(target, name, dir_fd=holder)

    def _check_room(self, descriptor: int, name: bytes, size: int) -> None:
        with self.acting(name):
            disk = os.fstatvfs(descriptor)
        free = disk.f_bavail * disk.f_frsize
        if size > free:
            shown = name.decode("utf-8", "backslashreplace")
            raise Fault(
                UNWRITABLE,
                f"node {self.node_id} has {free} bytes free where {shown!r} would be written, "
                f"which has {size}: free some, or copy to another directory",
            )


def landing(
    node_id: NodeId, found: tuple[str, bool, Sequence[int]], path: bytes, source_name: bytes
) -> Landing:
    """Return the target of a copy, with the rules of `cp` for its last argument.

    A folder that exists takes the copy under `source_name`; else `path` is its new name. Raises
    Fault and OSError.
    """
    root, fixed, ids = found
    with acting_as(ids):
        with contextlib.suppress(FileNotFoundError), opened(root, fixed, path) as top:
            if stat.S_ISDIR(os.fstat(top).st_mode):
                return Landing(node_id, ids, entered(".", top), os.path.join(path, source_name))
        parent, name = os.path.split(path)
        if name in (b"", b".", b".."):
            shown = path.decode("utf-8", "backslashreplace")
            raise Fault(UNWRITABLE, f"{shown!r} is no folder on node {node_id}: make it first")
        with opened(root, fixed, parent) as top:
            return Landing(node_id, ids, entered(".", top), path)
