"""Reads of files below a job's working directory, for `muster cp`, whatever links the job made.

They run as the job's user, so they show nothing that the job could not read itself. A path is
resolved, must lie below the root, and is opened part by part without following links: a link that
appears in between is refused. Nothing stays open, and only one part is in memory. Disk waits happen
in threads of their own. Tests: tests/integration/test_agent_files.py, test_job_users.py.
"""

import asyncio
import heapq
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import msgspec

from libs.common.errors import MusterError
from libs.common.messages.file_messages import (
    FILE,
    FOLDER,
    LINK,
    MISSING,
    OUTSIDE,
    PART_BYTES,
    PART_NAMES,
    PRUNED,
    UNREADABLE,
    FileAsk,
    FilePart,
    Named,
)
from libs.common.model import AttemptRef
from libs.common.subjects import ask_node
from libs.common.transport.bus import Bus
from services.node_agent.directories.acting_as import acting_as

AT_ONCE: Final = 4
# O_NONBLOCK, so that a pipe in place of a file does not block the reader.
FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# A folder on the way needs search permission only.
PASSED: Final = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC

_ask = msgspec.msgpack.Decoder(FileAsk)
_encode = msgspec.msgpack.Encoder().encode

# An attempt's working directory, whether its last name may not be a link, and `Account.ids` of its
# user (none: the agent's own); None when nothing of the attempt is here.
RootOf = Callable[[AttemptRef], tuple[str, bool, Sequence[int]] | None]


class Fault(MusterError):
    """A file that cannot be read. `word` is one of `file_messages`."""

    def __init__(self, word: str, text: str) -> None:
        super().__init__(text)
        self.word = word


class FileAnswers:
    """The answers to file requests on one agent."""

    def __init__(self, node_id: str, bus: Bus, root_of: RootOf) -> None:
        self.node_id, self.bus, self.root_of = node_id, bus, root_of
        self.threads = ThreadPoolExecutor(AT_ONCE, "files")

    async def listen(self) -> None:
        await self.bus.subscribe(ask_node(self.node_id, "files"), self._on_ask, concurrent=True)

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)

    async def _on_ask(self, subject: str, data: bytes) -> bytes:
        try:
            ask = _ask.decode(data)
        except msgspec.DecodeError as error:
            return _encode(FilePart(fault=UNREADABLE, text=f"not a FileAsk: {error}"))
        loop = asyncio.get_running_loop()
        return _encode(
            await loop.run_in_executor(self.threads, part_of, self.node_id, self.root_of, ask)
        )


def part_of(node_id: str, root_of: RootOf, ask: FileAsk) -> FilePart:
    """Return one part of a file or folder of an attempt, or the fault."""
    try:
        found = root_of(AttemptRef(ask.job_id, ask.attempt))
        if found is None:
            text = (
                f"node {node_id} has nothing of job {ask.job_id}, attempt "
                f"{ask.attempt}: it did not run there, or is pruned"
            )
            raise Fault(PRUNED, text)
        root, fixed, ids = found
        with acting_as(ids):
            return read(root, fixed, ask)
    except Fault as fault:
        return FilePart(fault=fault.word, text=str(fault))
    except (FileNotFoundError, NotADirectoryError):
        return FilePart(fault=MISSING, text=f"no such file: {_shown(ask.path)}")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        return FilePart(fault=UNREADABLE, text=f"{_shown(ask.path)} cannot be read: {why}")


def read(root: str, fixed: bool, ask: FileAsk) -> FilePart:
    """Return one part of a file or folder.

    `fixed`: the root itself may not be a link. Raises Fault, OSError and ValueError.
    """
    with opened(root, fixed, ask.path) as descriptor:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            return _names(descriptor, ask.after)
        data = os.pread(descriptor, PART_BYTES, ask.offset)
        identity = f"{status.st_dev}.{status.st_ino}"
        return FilePart(
            kind=FILE,
            size_bytes=status.st_size,
            mode=stat.S_IMODE(status.st_mode),
            identity=identity,
            data=data,
        )


@contextmanager
def opened(root: str, fixed: bool, path: bytes) -> Iterator[int]:
    """Open a file or folder below the root, or the root itself.

    Raises Fault and OSError.
    """
    top = (
        os.path.join(os.path.realpath(os.path.dirname(root)), os.path.basename(root))
        if fixed
        else os.path.realpath(root)
    )
    found = os.path.realpath(os.path.join(top, os.fsdecode(path)))
    if found != top and not found.startswith(top.rstrip("/") + "/"):
        raise Fault(OUTSIDE, f"{_shown(path)} leads out of the job's working directory")
    parts = [part for part in found[len(top) :].split("/") if part]
    descriptor = os.open(top, PASSED if parts else FLAGS | os.O_DIRECTORY)
    try:
        for left, part in zip(range(len(parts) - 1, -1, -1), parts, strict=True):
            mode = os.stat(part, dir_fd=descriptor, follow_symlinks=False).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise Fault(UNREADABLE, f"{_shown(path)} is no file and no folder")
            inner = os.open(part, PASSED if left else FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _names(folder: int, after: bytes) -> FilePart:
    """Return the next names in order; only files, folders and links are listed.

    Names and targets of links have at most PART_BYTES together, so that an answer fits a message.
    """
    with os.scandir(folder) as entries:
        found = heapq.nsmallest(
            PART_NAMES + 1, (name for entry in entries if (name := os.fsencode(entry.name)) > after)
        )
    named, size, last = list[Named](), 0, after
    for name in found[:PART_NAMES]:
        each = _named(folder, name)
        size += len(name) + (len(each.target) if each is not None else 0)
        if named and size > PART_BYTES:
            break
        last = name
        if each is not None:
            named.append(each)
    return FilePart(FOLDER, names=tuple(named), last=last, more=bool(found) and last != found[-1])


def _named(folder: int, name: bytes) -> Named | None:
    try:
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            return Named(name, LINK, os.readlink(name, dir_fd=folder))
    except FileNotFoundError:
        return None
    return (
        Named(name, FOLDER)
        if stat.S_ISDIR(mode)
        else Named(name, FILE)
        if stat.S_ISREG(mode)
        else None
    )


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace") or "."
