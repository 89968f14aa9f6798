"""Runs a command beside a job inside the job's container (`muster exec`).

A supervisor runs this program in place of the command. It gives the command and its streams to the
container's first process (init.c), which starts it. So the command has the container's namespaces,
control group, user, rights and environment. This program passes signals on and exits with the
command's exit code. When it ends for any reason, the command's session is killed. It is a script of
the standard library alone, like runner.py. Tests: tests/integration/test_container_execs.py.
"""

import contextlib
import os
import select
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NoReturn

# `init.c`: REQUEST_BYTES less its last byte, and WORDS_MAX.
REQUEST_BYTES_MAX: Final = 16_383
WORDS_MAX: Final = 4_096
# `supervisor.child.EXIT_NOT_EXECUTABLE`.
FAILED: Final = 126
# As if by SIGKILL, as for `control_client.GONE`.
GONE: Final = 137
SIGNALLED: Final = 128
# How long the container may take to be created.
ENTRY_WAIT_S: Final = 10.0
ENTRY_LOOK_S: Final = 0.05
# A container that ended ends its job, which ends this program.
END_WAIT_S: Final = 10.0
READ_BYTES: Final = 4_096
CREDENTIALS: Final = struct.Struct("3i")
STREAMS: Final = (0, 1, 2)
# Signals for this program itself; all others are passed to the command.
STOPS: Final = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
OWN: Final = {signal.SIGKILL, signal.SIGCHLD, signal.SIGPIPE, *STOPS}

Request = dict[str, Any]


def request_of(
    entry: str, request: Request, descriptors: Sequence[int]
) -> tuple[Request, list[int]]:
    """Return the supervisor's request that runs this program for a request, and its descriptors.

    A terminal is given three times, as streams: so this program does not take it over, and the
    command can. `entry`: see `runner.ENTRY`.
    """
    argv = [sys.executable, "-I", "-S", os.path.abspath(__file__), entry, *request["argv"]]
    streams = [*descriptors] * (1 if len(descriptors) > 1 else len(STREAMS))
    return {**request, "argv": argv}, streams


def fail(text: str) -> NoReturn:
    print(f"muster: {text}", file=sys.stderr, flush=True)
    os._exit(FAILED)


def end_with_job() -> NoReturn:
    """Wait for the supervisor to kill this program, because the container has ended."""
    time.sleep(END_WAIT_S)
    os._exit(GONE)


def caught_signals() -> int:
    """Catch signals; return the descriptor on which they arrive as bytes."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in set(signal.valid_signals()) - OWN:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, lambda *_: None)
    return reader


def message_of(words: Sequence[str], term: str) -> bytes:
    """Return the request for the first process. Raises ValueError if it is too large."""
    head = f"TERM={term}" if term else ""
    message = b"".join(os.fsencode(word) + b"\0" for word in (head, *words))
    if len(message) > REQUEST_BYTES_MAX or len(words) > WORDS_MAX:
        raise ValueError(
            f"the command has {len(words)} words and {len(message)} bytes: give at most "
            f"{WORDS_MAX} words and {REQUEST_BYTES_MAX} bytes"
        )
    return message


def connected(entry: str) -> socket.socket:
    """Connect to the container's first process, which may not run yet. Raises OSError."""
    folder, _, name = entry.rpartition("/")
    os.chdir(folder)  # the whole path may be too long for a socket's address
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    last_s = time.monotonic() + ENTRY_WAIT_S
    while True:
        try:
            stream.connect(name)
            return stream
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > last_s:
                raise
            time.sleep(ENTRY_LOOK_S)


def give(stream: socket.socket, message: bytes, owner: tuple[int, int]) -> None:
    """Give the streams to the container's user and then to the first process. Raises OSError.

    A file of the node, such as its null device, stays here: root in the container could change
    its mode. The command gets an empty pipe instead.
    """
    for descriptor in STREAMS:
        if not (stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor)):
            reader, writer = os.pipe()
            os.close(writer)
            os.dup2(reader, descriptor)
            os.close(reader)
        with contextlib.suppress(OSError):
            os.fchown(descriptor, *owner)
    socket.send_fds(stream, [message], list(STREAMS))
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in STREAMS:
        os.dup2(null, descriptor)


def received(stream: socket.socket) -> tuple[bytes, tuple[int, int]]:
    """Return one message, empty at the end, and the user and group of its sender."""
    room = socket.CMSG_SPACE(CREDENTIALS.size)
    try:
        data, ancillary, _, _ = stream.recvmsg(READ_BYTES, room)
    except ConnectionError:
        return b"", (0, 0)
    owner = (0, 0)
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            _, *ids = CREDENTIALS.unpack(raw[: CREDENTIALS.size])
            owner = ids[0], ids[1]
    return data, owner


def follow(stream: socket.socket, signals: int, message: bytes) -> int:
    """Start the command once the first process takes it; return its exit code. Raises OSError."""
    has_begun = False
    while True:
        ready, _, _ = select.select([stream.fileno(), signals], [], [])
        for number in os.read(signals, READ_BYTES) if signals in ready else b"":
            if not has_begun:
                return SIGNALLED + number
            with contextlib.suppress(OSError):
                stream.send(bytes([number]), socket.MSG_NOSIGNAL)
        if stream.fileno() not in ready:
            continue
        data, owner = received(stream)
        if not data:
            end_with_job()
        if has_begun:
            return data[0]
        give(stream, message, owner)
        has_begun = True


def main() -> None:
    entry, *words = sys.argv[1:]
    signals = caught_signals()
    try:
        message = message_of(words, os.environ.get("TERM", ""))
        stream = connected(entry)
        code = follow(stream, signals, message)
    except ConnectionError:
        end_with_job()
    except FileNotFoundError:
        fail(
            "the job's container is not ready, or an older agent started it: try again, or "
            "run the job again"
        )
    except (OSError, ValueError) as error:
        fail(f"the command cannot run in the job's container: {error}")
    os._exit(code)


if __name__ == "__main__":
    main()
