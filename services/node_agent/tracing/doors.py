"""The sockets that the processes of jobs ask for instructions to trace.

Each attempt has a folder of its own, which belongs to the job's user and holds the socket, those of
the processes, and the files that they write. The users of a container have other ids, so its folder
is open to all and lies in one that only the agent passes. The kernel says which process sent a
datagram. A job can send anything, so everything read here is bounded, and no answer follows a link.
Tests: tests/integration/test_tracing_agent.py, tests/attack/test_trace_door.py.
"""

import asyncio
import contextlib
import hashlib
import os
import socket
import stat
import struct
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from services.node_agent.directories.job_ownership import PASSABLE, is_passable, make_passable
from services.node_agent.tracing import datagrams
from services.node_agent.tracing.removals import GONE, Removals

FOLDER: Final = "tr"
NOTE: Final = "trace-folder"
SECRET: Final = "trace-secret"
SECRET_BYTES: Final = 16
NAME_DIGITS: Final = 10
# libkineto copies the path of its socket, `FOLDER/dynoconfigclient` and 36 more, to 108 bytes.
PATH_BYTES_MAX: Final = 54
# The folder of a container's job, in the one that only the agent passes.
INNER: Final = "d"
CREDENTIALS: Final = struct.Struct("=iii")
READS_PER_WAKE: Final = 16
# Datagrams of one attempt in a second. A process sends one in five.
DATAGRAMS_MAX: Final = 200
PAUSE_S: Final = 1.0
PROCESSES_MAX: Final = 256
# A process asks every 5 s; after this time without a question it does not count.
SILENCE_NS: Final = 12_000_000_000


class Caller(NamedTuple):
    """A process that asks for instructions. `tracer` is the type of its datagrams."""

    pid: int
    tracer: str
    seen_ns: int


class Door:
    """The socket of one attempt. `ids` are the user and group of the job; empty: the agent's.

    `outer` is the attempt's folder. `shared`: the job's folder in it is open to all users.
    """

    def __init__(
        self,
        outer: str,
        key: str,
        tenant: str,
        rank: int,
        ids: Sequence[int],
        shared: bool = False,
    ) -> None:
        self.outer, self.key, self.tenant, self.rank = outer, key, tenant, rank
        self.shared = shared
        self.folder = f"{outer}/{INNER}" if shared else outer
        self.ids = list(ids)
        self.callers: dict[tuple[int, str], Caller] = {}
        self.waiting: dict[tuple[int, str], str] = {}
        # The threads of processes that trace, as far as they were traced before.
        self.tracers: dict[int, set[str]] = {}
        self.socket: socket.socket | None = None
        self.read_in_second = 0
        self.second = 0
        self.resuming: asyncio.TimerHandle | None = None

    def open(self) -> None:
        """Create the folder and listen. Raises OSError."""
        path = f"{self.folder}/{datagrams.SOCKET}"
        for folder in dict.fromkeys((self.outer, self.folder)):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            listening.bind(path)
            if self.ids or self.shared:  # else the job runs as this agent's user
                _open_to_all(path)
                _give(self.folder, self.ids, self.shared)
        except OSError:
            listening.close()
            raise
        self.socket = listening
        self._listen()

    def living(self) -> list[Caller]:
        """Return the processes that have asked of late; PyTorch's own profiler goes first."""
        least_ns = time.monotonic_ns() - SILENCE_NS
        heard = [caller for caller in self.callers.values() if caller.seen_ns >= least_ns]
        heard.sort(key=lambda caller: (caller.pid, caller.tracer != datagrams.TORCH))
        return list({caller.pid: caller for caller in reversed(heard)}.values())[::-1]

    def tell(self, caller: Caller, text: str) -> None:
        """Give a process its instruction when it asks again."""
        self.waiting[caller.pid, caller.tracer] = text

    def untold(self, caller: Caller) -> bool:
        """Return whether the process has not asked since `tell`."""
        return (caller.pid, caller.tracer) in self.waiting

    def forget(self, caller: Caller) -> None:
        """Take back an instruction that the process has not fetched."""
        self.waiting.pop((caller.pid, caller.tracer), None)

    def close(self) -> None:
        """Stop listening. The folder stays."""
        if self.resuming is not None:
            self.resuming.cancel()
        if self.socket is not None:
            asyncio.get_running_loop().remove_reader(self.socket.fileno())
            self.socket.close()
            self.socket = None

    def _listen(self) -> None:
        self.resuming = None
        if self.socket is not None:
            asyncio.get_running_loop().add_reader(self.socket.fileno(), self._on_ready)

    def _on_ready(self) -> None:
        for _ in range(READS_PER_WAKE):
            if self.socket is None or not self._has_room():
                return
            try:
                data, sent, _, address = self.socket.recvmsg(
                    datagrams.DATAGRAM_BYTES_MAX + 1, socket.CMSG_SPACE(CREDENTIALS.size)
                )
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue
            with contextlib.suppress(ValueError, OSError):
                self._answer(data, pid_of(sent), address)

    def _has_room(self) -> bool:
        """Count a read; pause the attempt that sends more than its share."""
        second = time.monotonic_ns() // 1_000_000_000
        if second != self.second:
            self.second, self.read_in_second = second, 0
        self.read_in_second += 1
        if self.read_in_second <= DATAGRAMS_MAX:
            return True
        assert self.socket is not None
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.socket.fileno())
        self.resuming = loop.call_later(PAUSE_S, self._listen)
        return False

    def _answer(self, data: bytes, pid: int, address: object) -> None:
        """Answer a datagram. Raises ValueError and OSError."""
        asked = datagrams.decoded(data)
        if not isinstance(address, str) or os.path.dirname(address) != self.folder or not pid:
            raise ValueError("the sender is not in the attempt's folder")
        assert self.socket is not None
        if isinstance(asked, datagrams.Registered):
            _send(self.socket, datagrams.registration(1), address)
            return
        caller = Caller(pid, asked.tracer, time.monotonic_ns())
        self._note(caller)
        text = self.waiting.get((caller.pid, caller.tracer), "")
        _send(self.socket, datagrams.configuration(text, asked.tracer), address)
        self.waiting.pop((caller.pid, caller.tracer), None)

    def _note(self, caller: Caller) -> None:
        """Remember a process; the one that was silent longest makes room."""
        key = caller.pid, caller.tracer
        self.callers.pop(key, None)
        if len(self.callers) >= PROCESSES_MAX:
            oldest = next(iter(self.callers))
            self.callers.pop(oldest)
            self.tracers.pop(oldest[0], None)
        self.callers[key] = caller


class Folders:
    """The folders of the attempts of one agent.

    Below the state directory, if its path is short enough for libkineto and all users can pass;
    else in a folder of the machine's temporary directory, which the next agent finds by a note.
    """

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.root = ""
        self.secret = b""
        self.removals = Removals("")

    def open(self) -> None:
        """Choose the place, or find that of the agent before. Raises OSError."""
        self.root = self._place()
        self.removals = Removals(self.root)

    def _place(self) -> str:
        self.secret = _kept(self.state_dir / SECRET, lambda: os.urandom(SECRET_BYTES))
        own = self.state_dir / FOLDER
        longest = len(os.fsencode(own)) + 1 + NAME_DIGITS + 1 + len(INNER)
        if longest <= PATH_BYTES_MAX and is_passable(own):
            with contextlib.suppress(FileExistsError):
                own.mkdir(mode=PASSABLE)
            make_passable(self.state_dir)
            make_passable(own)
            return str(own)
        note = self.state_dir / NOTE
        found = os.fsdecode(_kept(note, _new_root))
        if not _is_own(found):
            note.unlink()
            found = os.fsdecode(_kept(note, _new_root))
        return found

    def of(self, key: str) -> str:
        """Return the folder of an attempt. Its name cannot be guessed, but the kernel's list of
        sockets shows it to all users.
        """
        digest = hashlib.blake2b(key.encode(), key=self.secret).hexdigest()
        return f"{self.root}/{digest[:NAME_DIGITS]}"

    def sweep(self, keys: Sequence[str]) -> None:
        """Let the folders of attempts that are not among `keys` be removed. Raises OSError."""
        wanted = {os.path.basename(self.of(key)) for key in keys}
        for name in os.listdir(self.root):
            if name not in wanted and not name.startswith(GONE):
                self.removals.put(f"{self.root}/{name}")
        self.removals.start()


def was_shared(outer: str) -> bool:
    """Return whether an earlier agent made a folder for a job with an image in this one."""
    return _is_own(outer) and _is_folder(f"{outer}/{INNER}")


def pid_of(ancillary: Sequence[tuple[int, int, bytes]]) -> int:
    """Return the sender's process as this machine numbers it; 0 if the kernel does not say."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return int(CREDENTIALS.unpack(data[: CREDENTIALS.size])[0])
    return 0


def _kept(path: Path, make: object) -> bytes:
    """Return the content of a file that only the agent reads; create it once. Raises OSError."""
    assert callable(make)
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    data = bytes(make())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
    return data


def _new_root() -> bytes:
    folder = tempfile.mkdtemp(prefix="muster-")
    os.chmod(folder, PASSABLE)
    return os.fsencode(folder)


def _is_folder(path: str) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISDIR(os.lstat(path).st_mode)
    return False


def _send(sender: socket.socket, data: bytes, address: str) -> None:
    """Send to a socket of the job's folder. Raises OSError, also if a link has its name now.

    A link could lead to the socket of another tenant's process, which the agent may write to.
    """
    held = os.open(address, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        seen = os.fstat(held)
        if not stat.S_ISSOCK(seen.st_mode) or seen.st_nlink != 1:
            raise OSError(f"{address} is not the sender's socket")
        sender.sendto(data, f"/proc/self/fd/{held}")
    finally:
        os.close(held)


def _is_own(folder: str) -> bool:
    """Return whether the folder is there and belongs to this agent's user."""
    with contextlib.suppress(OSError):
        found = os.lstat(folder)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return False


def _open_to_all(path: str) -> None:
    """Let any user who reaches the folder send to the socket. Raises OSError."""
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            os.chmod(f"/proc/self/fd/{descriptor}", 0o666)  # nosec B103: a socket; its folder decides who reaches it
    finally:
        os.close(descriptor)


def _give(folder: str, ids: Sequence[int], shared: bool) -> None:
    """Give the folder to the job's user. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if shared:
            os.fchmod(descriptor, 0o1777)  # nosec B103: users of one container have other ids
        if ids:
            os.fchown(descriptor, ids[0], ids[1])
    finally:
        os.close(descriptor)
