"""The folder with one tenant's copies of models on one node.

    OWNER--NAME/COMMIT/          the files of a copy, and their list (`.muster.json`)
    OWNER--NAME/COMMIT.json      the copy's description. It is written last: without it there is no
                                 copy. Its time is that of the copy's last use
    OWNER--NAME/COMMIT.parts/    files that are not complete
    OWNER--NAME/COMMIT.wanted    the bytes of a copy that is being made
    OWNER--NAME/lock             held while a copy of the repository is made or removed

The agent notes in a folder of its own, `uses`, which copies its attempts use: one file for each,
which it writes before it looks whether the copy is there. A copy is removed in the opposite order:
its description goes first, then the notes are read. So one of the two sees the other. Tests:
tests/integration/test_pull_copies.py.
"""

import contextlib
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from libs.job.pulling.errors import PullError
from libs.job.pulling.listing import (
    COMMIT,
    DEPTH_MAX,
    LIST_NAME,
    SIZE_MAX,
    Listed,
    check_repository,
    folder_of,
)

# Bytes of a description, and of a note of a use. Entries that are looked at in one folder, copies
# of one repository and of all, and entries whose sizes are summed up: jobs write here too.
TEXT_BYTES_MAX: Final = 64 << 10
ENTRIES_MAX: Final = 10_000
COMMITS_MAX: Final = 256
COPIES_MAX: Final = 1_000
SIZED_MAX: Final = 200_000
DESCRIPTION: Final = ".json"
PARTS: Final = ".parts"
WANTED: Final = ".wanted"
REMOVING: Final = ".removing"
# Folders that copies from node to node fill, and what those leave that were cut short.
FROM_PEER: Final = ".from-peer-"
CUT_SHORT: Final = (FROM_PEER, ".muster-copy-")
CUT_SHORT_S: Final = 86_400
DRAFT: Final = ".draft"
LOCK: Final = "lock"
LOCK_LOOK_S: Final = 0.5


@dataclass(frozen=True)
class Copy:
    """One copy of a model, or the beginning of one.

    `revisions` are the names under which it was pulled. A copy that is not `complete` has parts
    only. `used_ns` is the time of the last use on the wall clock. `job_id` made the copy.
    """

    repository: str
    commit: str
    revisions: tuple[str, ...] = ()
    size_bytes: int = 0
    files: int = 0
    include: tuple[str, ...] = ()
    job_id: str = ""
    complete: bool = True
    used_ns: int = 0

    @property
    def name(self) -> str:
        """Return the name by which `uses` notes it."""
        return f"{folder_of(self.repository)}/{self.commit}"

    @property
    def reference(self) -> str:
        return f"{self.repository}@{self.commit}"


class Copies:
    """The copies below `folder`. `uses` is the agent's folder with the notes of uses.

    `remove_tree` removes a folder, and ignores errors.
    """

    def __init__(
        self, folder: Path, uses: Path, remove_tree: Callable[[Path], object] | None = None
    ) -> None:
        self.folder, self.uses = folder, uses
        self.remove_tree = remove_tree or partial(shutil.rmtree, ignore_errors=True)

    def place(self, repository: str, commit: str, suffix: str = "") -> Path:
        return self.folder / folder_of(repository) / f"{commit}{suffix}"

    def all(self) -> list[Copy]:
        """Return all copies, and the beginnings of copies."""
        found: list[Copy] = []
        for each in _names(self.folder):
            with contextlib.suppress(PullError):
                repository = check_repository(each.replace("--", "/", 1))
                for commit in self._commits(repository):
                    copy = self.read(repository, commit)
                    found.append(copy or self._begun(repository, commit))
            if len(found) > COPIES_MAX:
                break
        return found

    def _commits(self, repository: str) -> list[str]:
        names = _names(self.folder / folder_of(repository))
        commits = dict.fromkeys(name.partition(".")[0] for name in names)
        return [each for each in commits if COMMIT.fullmatch(each)][:COMMITS_MAX]

    def _complete(self, repository: str) -> list[Copy]:
        copies = (self.read(repository, commit) for commit in self._commits(repository))
        return [copy for copy in copies if copy is not None]

    def read(self, repository: str, commit: str) -> Copy | None:
        """Return a complete copy; None if there is none."""
        path = self.place(repository, commit, DESCRIPTION)
        try:
            text, status = _read(path)
            value = json.loads(text)
            return Copy(
                repository,
                commit,
                revisions=_texts(value["revisions"]),
                size_bytes=_number(value["size_bytes"]),
                files=_number(value["files"]),
                include=_texts(value["include"]),
                job_id=_texts([value["job_id"]])[0],
                used_ns=status.st_mtime_ns,
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _begun(self, repository: str, commit: str) -> Copy:
        """Return a copy that has no description: its size is what it has, or will have."""
        size, used_ns = 0, 0
        for suffix in ("", PARTS):
            path = self.place(repository, commit, suffix)
            size += size_of(path)
            with contextlib.suppress(OSError):
                used_ns = max(used_ns, os.lstat(path).st_mtime_ns)
        if self.is_locked(repository):
            with contextlib.suppress(OSError, ValueError):
                size = max(size, int(_read(self.place(repository, commit, WANTED))[0]))
        return Copy(repository, commit, size_bytes=size, complete=False, used_ns=used_ns)

    def find(self, repository: str, revision: str) -> Copy | None:
        """Return the complete copy of a revision that was pulled last; None if there is none."""
        if COMMIT.fullmatch(revision):
            return self.read(repository, revision)
        held = [copy for copy in self._complete(repository) if revision in copy.revisions]
        return max(held, key=self._made_ns, default=None)

    def _made_ns(self, copy: Copy) -> int:
        with contextlib.suppress(OSError):
            return os.lstat(self.place(copy.repository, copy.commit, f"/{LIST_NAME}")).st_mtime_ns
        return 0

    def listed(self, repository: str, commit: str, folder: Path | None = None) -> list[Listed]:
        """Return the files of a copy, as its own list says. Raises PullError."""
        path = (folder or self.place(repository, commit)) / LIST_NAME
        try:
            rows = json.loads(_read(path, 64 * TEXT_BYTES_MAX)[0])
            return [Listed(*row) for row in rows]
        except (OSError, ValueError, TypeError, RecursionError) as error:
            raise PullError(f"{path} cannot be read: {error}") from error

    def publish(self, copy: Copy, files: list[Listed]) -> None:
        """Write the list and the description of a copy whose files are there. Raises OSError."""
        place = self.place(copy.repository, copy.commit)
        place.mkdir(parents=True, exist_ok=True)
        write(place / LIST_NAME, json.dumps([list(file) for file in files]))
        self._describe(copy)
        for other in self._complete(copy.repository):
            rest = tuple(each for each in other.revisions if each not in copy.revisions)
            if other.commit != copy.commit and rest != other.revisions:
                self._describe(replace(other, revisions=rest))
        shutil.rmtree(self.place(copy.repository, copy.commit, PARTS), ignore_errors=True)
        self.forget_wanted(copy.repository)

    def _describe(self, copy: Copy) -> None:
        described = asdict(copy)
        for name in ("repository", "commit", "complete", "used_ns"):
            del described[name]
        path = self.place(copy.repository, copy.commit, DESCRIPTION)
        write(path, json.dumps(described))
        if copy.used_ns:
            os.utime(path, ns=(copy.used_ns, copy.used_ns), follow_symlinks=False)

    def forget_wanted(self, repository: str) -> None:
        """Remove the notes of pulls of a repository that this process has locked."""
        for path in (self.folder / folder_of(repository)).glob(f"*{WANTED}"):
            path.unlink(missing_ok=True)

    def touch(self, copy: Copy) -> None:
        """Note that a copy is used now."""
        self.touch_name(copy.name)

    def touch_name(self, name: str) -> None:
        with contextlib.suppress(OSError):
            os.utime(self.folder / f"{name}{DESCRIPTION}", follow_symlinks=False)

    def used(self) -> set[str]:
        """Return the names of the copies that attempts use."""
        found = set()
        for name in _names(self.uses):
            with contextlib.suppress(OSError, ValueError):
                found.update(_read(self.uses / name)[0].split("\n"))
        return found

    def remove(self, copy: Copy) -> str:
        """Remove a copy; return why it stays, empty if it is gone."""
        with self.locked(copy.repository, waits=False) as is_mine:
            if not is_mine:
                return "a pull of the repository is running"
            return self.remove_locked(copy)

    def remove_locked(self, copy: Copy) -> str:
        """Remove a copy whose repository this process has locked."""
        description = self.place(copy.repository, copy.commit, DESCRIPTION)
        removing = self.place(copy.repository, copy.commit, REMOVING)
        with contextlib.suppress(FileNotFoundError):
            os.rename(description, removing)
        if copy.name in self.used():
            with contextlib.suppress(FileNotFoundError):
                os.rename(removing, description)
            return "a job or a model uses it"
        for suffix in ("", PARTS):
            self.remove_tree(self.place(copy.repository, copy.commit, suffix))
        for suffix in (WANTED, REMOVING):
            self.place(copy.repository, copy.commit, suffix).unlink(missing_ok=True)
        left = self.place(copy.repository, copy.commit)
        return f"{left} cannot be removed" if os.path.lexists(left) else ""

    @contextlib.contextmanager
    def locked(self, repository: str, waits: bool = True) -> Iterator[bool]:
        """Hold the lock of a repository; yield whether it is held. Raises OSError."""
        (self.folder / folder_of(repository)).mkdir(parents=True, exist_ok=True)
        with lock_of(self.folder / folder_of(repository) / LOCK, waits) as is_mine:
            yield is_mine

    def is_locked(self, repository: str) -> bool:
        path = self.folder / folder_of(repository) / LOCK
        if not path.exists():
            return False
        with lock_of(path, waits=False) as is_mine:
            return not is_mine

    def make_room(self, wanted: Copy, bound: int, free_bytes: int) -> None:
        """Remove the least recently used copies until another one fits.

        `wanted` is the copy that will be made, with its whole size; `bound` is the bound of all
        copies of the tenant (0: none). `free_bytes` of the disk stay free. Copies in use stay.
        Raises PullError.
        """
        (self.folder / folder_of(wanted.repository)).mkdir(exist_ok=True)
        with lock_of(self.folder / LOCK, waits=True):
            self._remove_cut_short()
            others = [copy for copy in self.all() if copy.name != wanted.name]
            have = size_of(self.place(wanted.repository, wanted.commit))
            have += size_of(self.place(wanted.repository, wanted.commit, PARTS))
            total = sum(copy.size_bytes for copy in others) + wanted.size_bytes
            missing = max(0, wanted.size_bytes - have)
            for copy in sorted(others, key=lambda each: each.used_ns):
                if not self._lacks(total, missing, bound, free_bytes):
                    break
                if copy.repository != wanted.repository:
                    gone = not self.remove(copy)
                else:
                    gone = not self.remove_locked(copy)
                total -= copy.size_bytes if gone else 0
            if lacks := self._lacks(total, missing, bound, free_bytes):
                raise PullError(
                    f"{wanted.reference} has {wanted.size_bytes} bytes, and {lacks}; what running "
                    "jobs and models use stays. Remove copies with muster model unpull, or pull "
                    "less with --include"
                )
            write(
                self.place(wanted.repository, wanted.commit, WANTED),
                str(wanted.size_bytes),
            )

    def _remove_cut_short(self) -> None:
        """Remove what copies from node to node left a day ago."""
        for name in _names(self.folder):
            path = self.folder / name
            if name.startswith(CUT_SHORT):
                with contextlib.suppress(OSError):
                    if time.time() - os.lstat(path).st_ctime > CUT_SHORT_S:
                        shutil.rmtree(path)

    def _lacks(self, total: int, missing: int, bound: int, free_bytes: int) -> str:
        if bound and total > bound:
            return f"all copies together may have {bound} (MUSTER_PULLED_BYTES)"
        free = shutil.disk_usage(self.folder).free
        if free < missing + free_bytes:
            return f"the disk has {free} free, of which {free_bytes} stay free"
        return ""


@contextlib.contextmanager
def lock_of(path: Path, waits: bool) -> Iterator[bool]:
    """Hold the lock of a file as long as the body runs; yield whether it is held."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o664)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_mine = True
            except BlockingIOError:
                is_mine = False
            if is_mine or not waits:
                break
            time.sleep(LOCK_LOOK_S)
        yield is_mine
    finally:
        os.close(descriptor)


def size_of(path: Path) -> int:
    """Return the bytes of the files below a folder, of the first `SIZED_MAX` of them.

    Links are not followed.
    """
    total, seen = 0, 0
    folders = [] if path.is_symlink() else [(str(path), 0)]
    while folders:
        folder, depth = folders.pop()
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                seen += 1
                if seen > SIZED_MAX:
                    return total
                if not entry.is_dir(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
                elif depth < DEPTH_MAX:
                    folders.append((entry.path, depth + 1))
    return total


def write(path: Path, text: str) -> None:
    """Replace a small file; it survives a power cut. Raises OSError."""
    draft = path.with_name(f"{path.name}{DRAFT}")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, 0o664), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(draft, path)


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, ENTRIES_MAX))
    except OSError:
        return []


def _read(path: Path, bytes_max: int = TEXT_BYTES_MAX) -> tuple[str, os.stat_result]:
    """Return the text of a plain file of few bytes. Raises OSError and ValueError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > bytes_max:
            raise ValueError(f"{path} is not a plain file of at most {bytes_max} bytes")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(bytes_max).decode(), status
    finally:
        os.close(descriptor)


def _number(value: object) -> int:
    """Return a size or a count of a description. Raises ValueError: jobs write there too."""
    if not isinstance(value, int) or not 0 <= value <= SIZE_MAX:
        raise ValueError("the description has a number out of bounds")
    return value


def _texts(values: object) -> tuple[str, ...]:
    """Return texts of a description. Raises ValueError for one that cannot be shown."""
    if not isinstance(values, list):
        raise ValueError("the description has no list where one is expected")
    if not all(isinstance(each, str) and each.isprintable() for each in values):
        raise ValueError("the description has a text that cannot be printed")
    return tuple(values)
