"""`muster exec`: this command's own streams and terminal are those of a process beside a job, until
that one ends.

With a terminal all keys go there, Ctrl-C among them, and this terminal is as it was before in every
ending but kill -9. Without one a signal to this command is sent on to the process, and a second one
leaves it, which ends it too. Tests: tests/integration/test_cli_exec.py.
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
from libs.cli.profile import Profile
from libs.cli.terminal.output import complain
from libs.common.messages.channel_messages import CHUNK_BYTES, Exec

CAUGHT: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DESCRIPTORS: Final = {"stdout": 1, "stderr": 2}


def execute(profile: Profile, ref: str, wish: Exec, node: str) -> int:
    """Its exit code. Raises what the gateway's answer may be."""
    last = asyncio.run(_execute(profile, ref, wish, node))
    if last.get("detail"):
        complain(str(last["detail"]))
    return int(last["exit_code"])


async def _execute(profile: Profile, ref: str, wish: Exec, node: str) -> Json:
    if wish.tty:
        wish = msgspec.structs.replace(wish, **_size())
    async with opened(profile, job_path(ref, "exec"), wish, node) as channel:
        with _raw(wish.tty) as restore:
            _catch(channel, wish.tty, restore)
            if wish.stdin:
                loop = asyncio.get_running_loop()
                threading.Thread(
                    target=_forward, args=(channel, loop), name="stdin", daemon=True
                ).start()
            return await channel.follow(_write, lambda _: None)


@contextmanager
def _raw(wanted: bool) -> Iterator[Callable[[], None]]:
    """The terminal hands on every key while this lasts; gives what puts it back."""
    if not wanted:
        yield lambda: None
        return
    before = termios.tcgetattr(0)

    def restore() -> None:
        termios.tcsetattr(0, termios.TCSADRAIN, before)

    try:
        tty.setraw(0, termios.TCSADRAIN)  # what was typed ahead is kept
        yield restore
    finally:
        restore()


def _catch(channel: Channel, has_terminal: bool, restore: Callable[[], None]) -> None:
    """What is done at a signal.

    With a terminal none of them comes from the keyboard: somebody ends this command.
    """
    loop, running, heard = asyncio.get_running_loop(), set[asyncio.Task[None]](), []

    def tell(**values: object) -> None:
        task = loop.create_task(channel.tell(**values))
        running.add(task)
        task.add_done_callback(running.discard)

    def caught(number: int) -> None:
        heard.append(number)
        if has_terminal or len(heard) > 1:
            restore()
            os._exit(128 + number)
        tell(signal=number)

    for number in CAUGHT:
        loop.add_signal_handler(number, caught, number)
    if has_terminal:
        loop.add_signal_handler(signal.SIGWINCH, lambda: tell(**_size()))


def _size() -> dict[str, int]:
    """Of a terminal that does not say, what the struct has."""
    rows, columns = termios.tcgetwinsize(0)
    return {name: value for name, value in (("rows", rows), ("columns", columns)) if value}


def _forward(channel: Channel, loop: asyncio.AbstractEventLoop) -> None:
    """On a thread, because a read from a file or a terminal can neither be awaited nor
    broken off.
    """
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
    """On a thread: a reader of this command that does not read holds up only the process."""
    await asyncio.to_thread(_write_all, DESCRIPTORS[stream], data)


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
