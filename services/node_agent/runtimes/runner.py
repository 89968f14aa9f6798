"""Creates a container, relays its streams and signals, and exits with its exit code.

A supervisor runs this program in place of the job's command. It is a script of the standard library
alone; MUSTER_CONTAINER describes the container (`container.Made`). The container's first process is
init.c, which holds the other end of a named pipe: when this process ends for any reason, the
container ends. Tests: tests/integration/test_containers.py.
"""

import contextlib
import ctypes
import errno
import http.client
import json
import os
import select
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from typing import Any, Final, NoReturn

VARIABLE: Final = "MUSTER_CONTAINER"
FAILED: Final = 125
# As in `supervisor/records.py`; this script imports nothing of the project.
FAILURE: Final = "container.err"
CONTAINER: Final = "container.id"
# The folder of mount points beside the job directories, and sockets there, where only the agent's
# user can go: the container has the first, commands of `muster exec` connect to the second.
MOUNTS: Final = "mounts"
DOOR: Final = ".door"
ENTRY: Final = ".entry"
READ_BYTES: Final = 65_536
HEADER_BYTES: Final = 8
HEAD_CHARS: Final = 200
# Commands that wait to be taken by the container's first process.
BACKLOG: Final = 32
MS_BIND: Final = 4096
MNT_DETACH: Final = 2
NAMED: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
STDERR_STREAM: Final = 2
# Signals for this program itself; all others are passed to the job.
STOPS: Final = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
OWN: Final = {signal.SIGKILL, signal.SIGCHLD, signal.SIGPIPE, *STOPS}

Pair = tuple[socket.socket, socket.socket]


class Engine(http.client.HTTPConnection):
    """A connection to the engine for one request: engines may close it at any time."""

    def __init__(self, path: str) -> None:
        super().__init__("engine")
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


def ask(path: str, method: str, url: str, body: object = None) -> dict[str, Any]:
    """Send a request and return the engine's answer.

    Raises OSError with the engine's message, or HTTPException for an answer that is none.
    """
    engine = Engine(path)
    try:
        engine.request(
            method,
            url,
            None if body is None else json.dumps(body),
            {"Content-Type": "application/json"},
        )
        answer = engine.getresponse()
        text = answer.read().decode(errors="replace")
    finally:
        engine.close()
    if answer.status >= http.client.BAD_REQUEST:
        with contextlib.suppress(ValueError):
            text = json.loads(text)["message"]
        raise OSError(0, text.strip())
    return dict(json.loads(text)) if text.startswith("{") else {}


def fail(text: str, job_dir: str) -> NoReturn:
    """Report a failure on the job's error output, and to the supervisor
    (`records.read_failure`).
    """
    print(f"muster: {text}", file=sys.stderr, flush=True)
    with contextlib.suppress(OSError):
        descriptor = os.open(
            f"{job_dir}/{FAILURE}",
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
        )
        os.write(descriptor, text.encode(errors="replace"))
    os._exit(FAILED)


def note(container: str, job_dir: str) -> None:
    """Note the container's id for the memory broker and, as the name of this process, for the lease
    watchdog (watchdog.c): both find it in the control groups of the container's processes.
    """
    path = f"{job_dir}/{CONTAINER}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    os.write(descriptor, container.encode())
    os.close(descriptor)
    _libc().prctl(15, f"mc:{container[:12]}".encode(), 0, 0, 0)  # PR_SET_NAME


def tethered(path: str) -> int:
    """Create the pipe that keeps the container alive; others may only read from it."""
    os.mkfifo(path, 0o600)
    end = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    os.chmod(path, 0o444)
    return end


def listening(path: str, mode: int) -> socket.socket:
    """Listen at a path, which may be too long for a socket's address. Raises OSError."""
    folder, _, name = path.rpartition("/")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.bind(f"/proc/self/fd/{descriptor}/{name}")
    os.close(descriptor)
    os.chmod(path, mode)
    made.listen(BACKLOG)
    return made


def give_entry(door: socket.socket, entry: socket.socket) -> None:
    """Give the container's first process the socket at which commands connect (init.c).

    It connects before it starts the job, so nothing of the job can take its place.
    """
    with door, entry, contextlib.suppress(OSError):
        first, _ = door.accept()
        with first:
            socket.send_fds(first, [b"\0"], [entry.fileno()])


@contextlib.contextmanager
def acting_as(ids: list[int]) -> Iterator[None]:
    """Run the body as the job's user; without `ids` as this process's own. Raises OSError."""
    groups, before = os.getgroups(), (os.geteuid(), os.getegid())
    try:
        if ids:
            os.setgroups(ids[2:])
            os.setegid(ids[1])
            os.seteuid(ids[0])
        yield
    finally:
        if ids:
            os.seteuid(before[0])
            os.setegid(before[1])
            os.setgroups(groups)


def opened(root: str, names: list[str]) -> int:
    """Open what lies at `names` below the directory `root`, without following a link.

    Raises OSError with the path that is not there, is a link, or is neither a file nor a directory.
    """
    descriptor, path = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), root
    for name in names:
        path = f"{path}/{name}"
        try:
            inner = os.open(name, NAMED, dir_fd=descriptor)
        except OSError as error:
            raise OSError(error.errno, f"{path}: {error.strerror}") from error
        finally:
            os.close(descriptor)
        descriptor = inner
        if stat.S_ISLNK(os.fstat(descriptor).st_mode):
            raise OSError(0, f"{path} is a symbolic link: name the place that it leads to")
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        raise OSError(0, f"{path} is neither a file nor a directory: mount one of these")
    return descriptor


def usable(descriptor: int) -> bool:
    """Return whether the effective user may change a file that is opened by its name only.

    Such an open needs no right at the file itself. Raises OSError unless that user may read the
    file, or enter the directory. For a directory return true: the kernel checks each change in it.
    """
    path, is_folder = f"/proc/self/fd/{descriptor}", stat.S_ISDIR(os.fstat(descriptor).st_mode)
    if not os.access(path, os.X_OK if is_folder else os.R_OK, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return is_folder or os.access(path, os.W_OK, effective_ids=True)


def own_mount(mount: dict[str, Any], ids: list[int], at: str) -> list[dict[str, Any]]:
    """Return the engine's mount for a mount of the job; none if an `optional` one does not exist.

    It is opened as the job's user, and mounted `at` a place of the agent, so that the user cannot
    replace it in between. Raises OSError.
    """
    try:
        with acting_as(ids):
            descriptor = opened(mount["root"], mount["names"])
            may_change = usable(descriptor)
    except OSError as error:
        if mount.get("optional") and isinstance(error, FileNotFoundError):
            return []
        raise OSError(0, f"mount for {mount['target']}: {error.strerror or error}") from error
    if mount.get("refusal"):
        raise OSError(0, mount["refusal"])
    plain = "/".join([mount["root"], *mount["names"]])
    is_held = os.geteuid() == 0 and (ids or not mount.get("optional"))
    source = mounted_at(descriptor, at) if is_held else plain
    read_only = mount["read_only"] or not may_change
    return [{"Type": "bind", "Source": source, "Target": mount["target"], "ReadOnly": read_only}]


def mounted_at(descriptor: int, at: str) -> str:
    """Mount an open file or directory at a place of the agent. Raises OSError."""
    os.makedirs(os.path.dirname(at), mode=0o700, exist_ok=True)
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        os.makedirs(at, mode=0o700, exist_ok=True)
    else:
        os.close(os.open(at, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    source = f"/proc/self/fd/{descriptor}".encode()
    if _libc().mount(source, at.encode(), None, MS_BIND, None) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return at


def unmount(at: str) -> None:
    """Unmount what is mounted here; a running container keeps it. Harmless if nothing is."""
    if os.path.lexists(at):
        _libc().umount2(at.encode(), MNT_DETACH)
        with contextlib.suppress(OSError):
            (os.rmdir if os.path.isdir(at) else os.unlink)(at)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def attached(path: str, name: str, stdin: bool) -> socket.socket:
    """Attach to the container's streams before its first byte. Raises OSError."""
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(path)
    url = f"/containers/{name}/attach?stream=1&stdin={int(stdin)}&stdout=1&stderr=1"
    words = f"POST {url} HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
    stream.sendall(words.encode())
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = stream.recv(1)
        if not byte:
            raise OSError(0, "the engine closed the container's streams")
        head += byte
    status = head.split(None, 2)[1:2]
    if status not in ([b"101"], [b"200"]):
        raise OSError(
            0, f"the engine gave no streams: {head.strip().decode(errors='replace')[:HEAD_CHARS]}"
        )
    return stream


class Streams:
    """The relay between the container's streams and this process's own.

    `pending` is input that the container has not taken yet. Relaying goes on meanwhile.
    """

    def __init__(self, stream: socket.socket, stdin: bool) -> None:
        self.stream, self.stdin = stream, stdin
        self.buffer = self.pending = b""
        if not stdin:
            self._end_input()

    @property
    def sources(self) -> list[int]:
        return [self.stream.fileno(), *([0] if self.stdin and not self.pending else [])]

    @property
    def sinks(self) -> list[int]:
        return [self.stream.fileno()] if self.pending else []

    def _end_input(self) -> None:
        with contextlib.suppress(OSError):
            self.stream.shutdown(socket.SHUT_WR)

    def take(self) -> bool:
        """Relay output; return False at its end."""
        data = self.stream.recv(READ_BYTES)
        self.buffer += data
        while len(self.buffer) >= HEADER_BYTES:
            size = int.from_bytes(self.buffer[4:HEADER_BYTES], "big")
            if len(self.buffer) < HEADER_BYTES + size:
                break
            self._print(self.buffer[0], self.buffer[HEADER_BYTES : HEADER_BYTES + size])
            self.buffer = self.buffer[HEADER_BYTES + size :]
        return bool(data)

    def _print(self, stream: int, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):
            while data:
                data = data[os.write(2 if stream == STDERR_STREAM else 1, data) :]

    def give(self) -> None:
        self.pending = os.read(0, READ_BYTES)
        if not self.pending:
            self.stdin = False
            self._end_input()

    def push(self) -> None:
        try:
            self.pending = self.pending[self.stream.send(self.pending, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return
        except OSError:
            self.pending, self.stdin = b"", False
            self._end_input()


def pass_on(path: str, name: str, number: int) -> None:
    """Send a signal to the container; ignore errors, because it may have ended."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        ask(path, "POST", f"/containers/{name}/kill?signal={number}")


def catch_signals() -> int:
    """Catch signals; return the descriptor on which they arrive as bytes."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in set(signal.valid_signals()) - OWN:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, lambda *_: None)
    return reader


def relay(streams: Streams, signals: int, container: tuple[str, str], sockets: Pair) -> None:
    """Relay streams and signals until the container's output ends.

    `container` is the engine and the name. `sockets`: see `give_entry`.
    """
    door = sockets[0]
    while True:
        doors = [door.fileno()] if door.fileno() >= 0 else []
        ready, room, _ = select.select([*streams.sources, signals, *doors], streams.sinks, [])
        if door.fileno() in ready:
            give_entry(*sockets)
        if signals in ready:
            for number in os.read(signals, READ_BYTES):
                pass_on(*container, number)
        if 0 in ready:
            streams.give()
        if room:
            streams.push()
        if streams.stream.fileno() in ready and not streams.take():
            return


def main() -> None:
    made = json.loads(os.environ.pop(VARIABLE))
    path, name, body = made["engine"], made["name"], made["body"]
    signals = catch_signals()
    places = [f"{made['mount']}.{place}" for place in range(len(made["mounts"]))]
    try:
        tether = tethered(made["tether"])
        door = listening(f"{made['mount']}{DOOR}", 0o666)
        entry = listening(f"{made['mount']}{ENTRY}", 0o600)
        for mount, at in zip(made["mounts"], places, strict=True):
            body["HostConfig"]["Mounts"] += own_mount(mount, made["ids"], at)
        created = ask(path, "POST", f"/containers/create?name={name}", body)
        note(str(created.get("Id", "")), os.path.dirname(made["tether"]))
        stream = attached(path, name, made["stdin"])
        ask(path, "POST", f"/containers/{name}/start")
    except (OSError, http.client.HTTPException, ValueError) as error:
        for at in places:
            unmount(at)
        fail(
            f"the container did not start: {getattr(error, 'strerror', '') or error}",
            os.path.dirname(made["tether"]),
        )
    for at in places:
        unmount(at)
    try:
        relay(Streams(stream, made["stdin"]), signals, (path, name), (door, entry))
        code = ask(path, "POST", f"/containers/{name}/wait")["StatusCode"]
        if ask(path, "GET", f"/containers/{name}/json")["State"].get("OOMKilled"):
            limit = f"{body['HostConfig']['Memory'] >> 20} MiB"
            why = f"out of host memory: the kernel ended processes of it at {limit}"
            print(f"muster: {why}", file=sys.stderr)
        with contextlib.suppress(OSError, http.client.HTTPException):
            ask(path, "DELETE", f"/containers/{name}?force=1&v=1")
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        fail(f"the container engine was lost: {error}", os.path.dirname(made["tether"]))
    os.close(tether)
    sys.exit(code)


if __name__ == "__main__":
    main()
