"""Cancellations that are not lost, and waits that a planned stop ends.

`asyncio.wait_for` of Python 3.11 (and nats-py, which uses it) loses a cancellation that comes at
the same moment as the result. A task that loops would then live for ever, and so would every task
that waits for its end. Code that talks to the network calls `heed` after each such await. Test:
tests/unit/test_cancellation.py.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

END_TRIES: Final = 50
END_AGAIN_S: Final = 0.1

# How often `while_wanted` looks.
LOOK_S: Final = 0.2
# Time for a cancelled task to end.
LAST_WORD_S: Final = 1.0


class Stopped(Exception):
    """The work was told to stop before it was done."""


def heed() -> None:
    """Raise CancelledError if this task was cancelled, whatever its last await returned."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def before(stop: asyncio.Event, opening: Coroutine[None, None, T]) -> T:
    """Return what `opening` returns, or raise Stopped if `stop` is set first.

    So a process that still waits for the log stops at once.
    """
    working, waiting = asyncio.ensure_future(opening), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Stopped
        return working.result()
    finally:
        waiting.cancel()
        if not working.done():
            working.cancel()
            await asyncio.wait((working,), timeout=LAST_WORD_S)


async def within(opening: Coroutine[None, None, T], seconds: float) -> T:
    """Return the result of `opening`, or raise TimeoutError after `seconds`.

    `opening` ends in both cases. `asyncio.wait_for` cancels only once, and a client that retries
    without end goes on when it loses that cancellation.
    """
    task = asyncio.ensure_future(opening)
    try:
        await asyncio.wait((task,), timeout=seconds)
        if not task.done():
            raise TimeoutError(f"no result within {seconds:g} s")
        return task.result()
    finally:
        await end_all((task,))


async def while_wanted(opening: Coroutine[None, None, T], wanted: Callable[[], bool]) -> T:
    """Return the result of `opening`, or raise Stopped once its result is not `wanted` any more.

    `opening` ends in both cases. Threads that it waits for do not.
    """
    task = asyncio.ensure_future(opening)
    try:
        while not task.done():
            if not wanted():
                raise Stopped
            await asyncio.wait((task,), timeout=LOOK_S)
        return task.result()
    finally:
        await end_all((task,))


async def end_all(tasks: Sequence[asyncio.Task[T]]) -> None:
    """Cancel the tasks until they have ended: `asyncio.wait_for` may lose a cancellation."""
    for _ in range(END_TRIES):
        left = [task for task in tasks if not task.done()]
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=END_AGAIN_S)
