"""The node's store of compile products, one set of files per model of a tenant.

A replica gets a copy, never the store's own files. Every file is compared with its SHA-256 while it
is copied, and the whole list with the hash that the log has. A set that differs is removed. The
store is bounded: the set that saves the least time per byte goes first. Tests:
tests/unit/test_resident_artefacts.py.
"""

import contextlib
import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.safety.folder_walk import remove_tree
from services.node_agent.machine import synced_file
from services.node_agent.resident import trees
from services.node_agent.resident.trees import Differs

MANIFEST: Final = "manifest.json"
FILES: Final = "files"
ARTEFACT_FILES_MAX: Final = 20_000
# Integer scale of milliseconds per byte.
SCALE: Final = 1 << 40


class Artefact(msgspec.Struct):
    """One set of compile products.

    `cold_ms` is how long the start took that made them, `warm_ms` the last start with them; 0:
    unknown.
    """

    tenant: str
    model: str
    key: str
    size_bytes: int
    content: str
    files: dict[str, str]
    cold_ms: int = 0
    warm_ms: int = 0
    saved_ns: int = 0

    @property
    def owner(self) -> tuple[str, str]:
        return self.tenant, self.model

    @property
    def saves_ms(self) -> int:
        return max(0, self.cold_ms - self.warm_ms)

    @property
    def worth(self) -> int:
        """Return the start time that it saves per byte."""
        return self.saves_ms * SCALE // max(1, self.size_bytes)


class ArtefactStore:
    """The sets below one folder, which belongs to the agent alone."""

    def __init__(self, root: Path, bytes_max: int) -> None:
        self.root, self.bytes_max = root, bytes_max
        self.known: dict[tuple[str, str], Artefact] = {}

    def load(self) -> None:
        """Read what earlier agents stored. What cannot be read is removed."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for folder in sorted(self.root.iterdir()):
            try:
                found = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Artefact)
            except (OSError, msgspec.DecodeError):
                remove_tree(folder)
                continue
            self.known[found.tenant, found.model] = found

    def lend(self, tenant: str, model: str, key: str, content: str, target: Path) -> bool:
        """Copy the set for this key to a replica's folder; return whether there was one.

        Raises Differs if a file or the list is not what it was; then the set is gone. Raises
        OSError if the copy cannot be written; then the set stays.
        """
        found = self.known.get((tenant, model))
        if found is None or found.key != key:
            return False
        try:
            if content and found.content != content:
                raise Differs("the list of its files is not the recorded one")
            if trees.content_of(found.files) != found.content:
                raise Differs("the list of its files does not have the recorded SHA-256")
            source = str(self._folder(tenant, model) / FILES)
            sizes = trees.listed(source, (), follow=False, files_max=ARTEFACT_FILES_MAX)
            trees.copied(source, target, sizes, (), found.files)
        except (Differs, Refused) as error:
            _empty(target)
            self.remove(tenant, model)
            raise Differs(str(error)) from error
        except OSError:
            _empty(target)
            raise
        return True

    def save(
        self, tenant: str, model: str, key: str, source: str, ids: Sequence[int], ready_ms: int
    ) -> tuple[Artefact | None, list[Artefact]]:
        """Store what a finished healthy replica compiled; return the set, and those that gave way.

        None if there is nothing to store, or others are worth more. Raises Differs for a file that
        changes meanwhile, Refused and OSError; then the set before stays.
        """
        sizes = trees.listed(source, ids, follow=False, files_max=ARTEFACT_FILES_MAX)
        size = sum(sizes.values())
        before = self.known.get((tenant, model))
        same = before is not None and before.key == key
        if not sizes:
            return None, []
        made = Artefact(tenant, model, key, size, "", {}, ready_ms, 0, time.time_ns())
        if before is not None and same:
            made.cold_ms, made.warm_ms = before.cold_ms, ready_ms or before.warm_ms
        out = self._room_for(made)
        if out is None:
            return None, []
        folder = self._folder(tenant, model)
        fresh = folder.with_suffix(".new")
        remove_tree(fresh)
        try:
            made.files = trees.copied(source, fresh / FILES, sizes, ids)
        except (Differs, Refused, OSError):
            remove_tree(fresh)
            raise
        made.content = trees.content_of(made.files)
        synced_file.replace(fresh / MANIFEST, msgspec.json.encode(made))
        for each in out:
            self.remove(each.tenant, each.model)
        remove_tree(folder)
        os.rename(fresh, folder)
        self.known[tenant, model] = made
        return made, out

    def _room_for(self, made: Artefact) -> list[Artefact] | None:
        """Return the sets that must go; None if they are worth more than the new one."""
        others = [each for each in self.known.values() if each.owner != made.owner]
        excess = made.size_bytes + sum(each.size_bytes for each in others) - self.bytes_max
        chosen: list[Artefact] = []
        for each in sorted(others, key=lambda each: (each.worth, each.saved_ns)):
            if excess <= 0 or each.worth > made.worth:
                break
            chosen.append(each)
            excess -= each.size_bytes
        return chosen if excess <= 0 else None

    def remove(self, tenant: str, model: str) -> None:
        """Remove a set. Harmless when repeated."""
        self.known.pop((tenant, model), None)
        remove_tree(self._folder(tenant, model))

    def _folder(self, tenant: str, model: str) -> Path:
        return self.root / hashlib.sha256(f"{tenant}/{model}".encode()).hexdigest()[:32]


def _empty(folder: Path) -> None:
    """Remove what was copied into a replica's folder."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            remove_tree(folder / name)
