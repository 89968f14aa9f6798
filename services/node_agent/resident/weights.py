"""Weight files of models in the node's memory: folders on a tmpfs that belongs to the agent.

A folder is filled only if the SHA-256 of every file is the recorded one; otherwise nothing of it
stays. Its name is random and its parents cannot be listed, so only a replica that was told the path
can open it. Tests: tests/unit/test_resident_trees.py.
"""

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.messages import KeepOrder
from libs.common.safety.folder_walk import remove_tree
from services.node_agent.machine import synced_file
from services.node_agent.resident import trees

MANIFEST: Final = "manifest.json"
NAME_BYTES: Final = 16
PASSABLE: Final = 0o711
READABLE: Final = 0o444


class Filled(msgspec.Struct):
    """One filled folder, `name` below the root."""

    name: str
    model: str
    tenant: str
    request: int
    size_bytes: int
    files: dict[str, str]


class HostWeights:
    """The folders of one agent."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.known: dict[tuple[str, str], Filled] = {}

    def load(self) -> None:
        """Find the folders of earlier agents. They count once `verified` has read them."""
        if not is_own(self.root):
            return
        try:
            found = msgspec.json.decode((self.root / MANIFEST).read_bytes(), type=list[Filled])
        except (OSError, msgspec.DecodeError):
            found = []
        self.known = {(each.tenant, each.model): each for each in found}
        names = {each.name for each in found}
        for folder in self.root.iterdir():
            if folder.name != MANIFEST and folder.name not in names:
                remove_tree(folder)

    def measure(self, order: KeepOrder, ids: Sequence[int]) -> int:
        """Return the bytes of the weight files. Raises Refused."""
        sizes = trees.listed(order.weights, ids, follow=True)
        if not sizes:
            raise Refused(f"{order.weights} has no files")
        return sum(sizes.values())

    def fill(self, order: KeepOrder, ids: Sequence[int]) -> Filled:
        """Copy the weight files into memory, within the granted bytes.

        Raises Differs for a checkpoint that is not the recorded one, and Refused. Then no file of
        it is left.
        """
        sizes = trees.listed(order.weights, ids, follow=True)
        size = sum(sizes.values())
        if not sizes:
            raise Refused(f"{order.weights} has no files")
        if size > order.granted:
            raise trees.Differs(
                f"{order.weights} has {size} bytes now, and {order.granted} were granted"
            )
        folder = self.staged(order, size)
        try:
            files = trees.copied(order.weights, folder, sizes, ids, order.files or None)
        except (trees.Differs, Refused, OSError):
            remove_tree(folder)
            raise
        return self.adopt(order, folder, size, files)

    def verified(self, order: KeepOrder) -> Filled | None:
        """Return the folder that an earlier agent filled for this request, if every file is still
        the recorded one; else remove it.
        """
        found = self.known.get((order.tenant, order.model))
        if found is None:
            return None
        expected = order.files or found.files
        whole = trees.hashes_of(self.root / found.name, found.files) == expected
        if found.request == order.request and whole:
            return found
        self.remove(order.tenant, order.model)
        return None

    def staged(self, order: KeepOrder, size: int) -> Path:
        """Return an empty folder for the files of an order. Raises Refused if they do not fit.

        What was kept before is removed: the granted bytes are for one copy.
        """
        own_folder(self.root)
        free = shutil.disk_usage(self.root).free
        if size > free:
            raise Refused(
                f"{self.root} has {free} bytes free, and {size} are needed: enlarge the tmpfs, or "
                "set MUSTER_KEPT_MEMORY_DIR to a larger one"
            )
        self.remove(order.tenant, order.model)
        folder = self.root / secrets.token_hex(NAME_BYTES)
        folder.mkdir(mode=PASSABLE)
        return folder

    def adopt(self, order: KeepOrder, folder: Path, size: int, files: dict[str, str]) -> Filled:
        """Give a staged folder, whose files were verified, to the replicas of the model."""
        _open_up(folder)
        filled = Filled(folder.name, order.model, order.tenant, order.request, size, files)
        self.known[order.tenant, order.model] = filled
        self._note()
        return filled

    def path_of(self, tenant: str, model: str) -> str:
        """Return the folder with the model's weights; empty if they are not in memory."""
        found = self.known.get((tenant, model))
        return str(self.root / found.name) if found is not None else ""

    def remove(self, tenant: str, model: str) -> None:
        """Remove a folder. Harmless when repeated."""
        found = self.known.pop((tenant, model), None)
        if found is not None:
            remove_tree(self.root / found.name)
            # A note of a folder that is gone is harmless; jobs may have filled the tmpfs.
            with contextlib.suppress(OSError):
                self._note()

    def _note(self) -> None:
        synced_file.replace(self.root / MANIFEST, msgspec.json.encode(list(self.known.values())))


def is_own(folder: Path) -> bool:
    """Return whether a folder exists and belongs to this user: others may write beside it."""
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def own_folder(folder: Path) -> None:
    """Create a folder that others may enter. Raises Refused if another user has created it."""
    folder.mkdir(mode=PASSABLE, parents=True, exist_ok=True)
    if not is_own(folder):
        raise Refused(
            f"{folder} belongs to another user: remove it, or set MUSTER_KEPT_MEMORY_DIR to "
            "another tmpfs"
        )
    os.chmod(folder, PASSABLE)


def _open_up(folder: Path) -> None:
    """Let any user read the files, and enter the folders without listing them."""
    for here, _, names in os.walk(folder):
        os.chmod(here, PASSABLE)
        for name in names:
            os.chmod(os.path.join(here, name), READABLE)
