"""`muster exec`: connects this command's streams and terminal to a process inside a job.

With a terminal, all keys go to the process, including Ctrl-C, and the terminal is restored at every
end except kill -9. Without one, the first signal goes to the process; a second signal ends this
command, which also ends the process. Tests: tests/integration/test_cli_exec.py.
"""

import asyncio
import concurrent.futures
import os
import signal
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from libs.cli.following.channel import Channel, opened
from libs.cli.gateway import Json, job_path
from libs.cli.terminal.output import complain
from libs.client.profile import Profile
from libs.common.messages.channel_messages import CHUNK_BYTES, Exec

CAUGHT: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DESCRIPTORS: Final = {"stdout": 1, "stderr": 2}


def execute(profile: Profile, ref: str, request: Exec, node: str) -> int:
    """Run a command in a job and return its exit code.

    Raises Declined, Unreachable or Cut.
    """
    last = asyncio.run(_execute(profile, ref, request, node))
    if last.get("detail"):
        complain(str(last["detail"]))
    return int(last["exit_code"])


async def _execute(profile: Profile, ref: str, request: Exec, node: str) -> Json:
    if request.tty:
        request = msgspec.structs.replace(request, **_size())
    async with opened(profile, job_path(ref, "exec"), request, node) as channel:
        with _raw(request.tty) as restore:
            _catch(channel, request.tty, restore)
            if request.stdin:
                loop = asyncio.get_running_loop()
                threading.Thread(
                    target=_forward, args=(channel, loop), name="stdin", daemon=True
                ).start()
            return await channel.follow(_write, lambda _: None)


@contextmanager
def _raw(wanted: bool) -> Iterator[Callable[[], None]]:
    """Put the terminal into raw mode, and yield a function that restores it."""
    if not wanted:
        yield lambda: None
        return
    before = termios.tcgetattr(0)

    def restore() -> None:
        termios.tcsetattr(0, termios.TCSADRAIN, before)

    try:
        tty.setraw(0, termios.TCSADRAIN)  # keeps input that was typed ahead
        yield restore
    finally:
        restore()


def _catch(channel: Channel, has_terminal: bool, restore: Callable[[], None]) -> None:
    """Handle signals to this command.

    With a terminal, keys do not cause signals, so a signal means to end this command.
    """
    loop, running, received = asyncio.get_running_loop(), set[asyncio.Task[None]](), []

    def tell(**values: object) -> None:
        task = loop.create_task(channel.tell(**values))
        running.add(task)
        task.add_done_callback(running.discard)

    def caught(number: int) -> None:
        received.append(number)
        if has_terminal or len(received) > 1:
            restore()
            os._exit(128 + number)
        tell(signal=number)

    for number in CAUGHT:
        loop.add_signal_handler(number, caught, number)
    if has_terminal:
        loop.add_signal_handler(signal.SIGWINCH, lambda: tell(**_size()))


def _size() -> dict[str, int]:
    """Return the terminal's size; unknown values are left out, and the defaults apply."""
    rows, columns = termios.tcgetwinsize(0)
    return {name: value for name, value in (("rows", rows), ("columns", columns)) if value}


def _forward(channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
    """Forward standard input, on a thread: such a read can be neither awaited nor cancelled."""
    try:
        while data := os.read(0, CHUNK_BYTES):
            if not asyncio.run_coroutine_threadsafe(channel.write(data), loop).result():
                return
        asyncio.run_coroutine_threadsafe(channel.tell(eof=True), loop).result()
    except (RuntimeError, concurrent.futures.CancelledError):
        return  # the process has ended
    except OSError as error:
        complain(f"standard input cannot be read: {error.strerror}")


async def _write(stream: str, data: bytes) -> None:
    """Write on a thread, so that a slow reader does not block the event loop."""
    await asyncio.to_thread(_write_all, DESCRIPTORS[stream], data)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
