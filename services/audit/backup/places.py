"""The places that hold backups: a directory, or a prefix of a bucket in S3 (`s3.py`).

A place stores whole objects by name. A put is complete or did not happen, and replaces an object of
the same name, so the manifest is replaced at once. Tests: tests/unit/test_backup_places.py and
tests/integration/test_backup_s3.py.
"""

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Final, Protocol

from libs.common.errors import Refused, Unavailable

CURRENT: Final = "current"
SEGMENTS: Final = "segments"
# Names that are listed in one place.
NAMES_MAX: Final = 10_000_000


class Place(Protocol):
    """Objects by name. All methods raise Unavailable, or Refused if the place cannot be used."""

    async def put(self, name: str, data: bytes) -> None:
        """Store an object durably and completely."""
        ...

    async def get(self, name: str) -> bytes | None:
        """Return an object; None if there is none."""
        ...

    async def old_names(self, folder: str, older_s: float) -> list[str]:
        """Return the names of a folder whose objects are older than that."""
        ...

    async def delete(self, name: str) -> None:
        """Remove the object if it exists."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class DirectoryPlace:
    """A directory of this machine, or one that is mounted here. Its calls run in threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def put(self, name: str, data: bytes) -> None:
        await asyncio.to_thread(_write, self.folder / name, data)

    async def get(self, name: str) -> bytes | None:
        return await asyncio.to_thread(_read, self.folder / name)

    async def old_names(self, folder: str, older_s: float) -> list[str]:
        names = await asyncio.to_thread(_old_files, self.folder / folder, time.time() - older_s)
        return [f"{folder}/{name}" for name in names]

    async def delete(self, name: str) -> None:
        await asyncio.to_thread((self.folder / name).unlink, missing_ok=True)

    async def close(self) -> None:
        """Close nothing: a directory has no connection."""


def _write(path: Path, data: bytes) -> None:
    """Write a file durably, completely or not at all. Raises Unavailable."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be written ({error.strerror}): check the place's space and "
            "permissions, then repeat the backup; the last one is unchanged"
        ) from error


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be read ({error.strerror}): check the place's permissions"
        ) from error


def _old_files(folder: Path, before: float) -> list[str]:
    """Return the files that were last written before this time (seconds since 1970)."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.stat().st_mtime < before]
    except FileNotFoundError:
        return []


def segment_name(name: str) -> str:
    """Return the name in a place of the segment with this SHA-256."""
    return f"{SEGMENTS}/{name}"


def sync_folder(folder: Path) -> None:
    """Return when the names of the files in a folder are on disk. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def place_of(text: str) -> Place:
    """Return the place of an argument: a directory, or s3://bucket/prefix. Raises Refused."""
    if text.startswith("s3://"):
        from services.audit.backup.s3 import s3_place

        return s3_place(text, os.environ)
    if "://" in text:
        raise Refused(
            f"{text!r} is not a place for backups: give a directory, or s3://bucket/prefix"
        )
    folder = Path(text)
    if folder.exists() and not folder.is_dir():
        raise Refused(f"{folder} is a file: give a directory, or s3://bucket/prefix")
    return DirectoryPlace(folder)
