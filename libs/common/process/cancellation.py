"""A cancellation that is never passed over, and a wait that a planned stop ends.

`asyncio.wait_for` of Python 3.11 (and nats-py, which is built on it) returns a result that comes in
the moment of a cancellation, and forgets the cancellation: a task that loops would then live for
ever, and whoever waits for its end with it. What talks to the world calls `heed` behind each such
await. Test: tests/unit/test_cancellation.py.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

END_TRIES: Final = 50
END_AGAIN_S: Final = 0.1

# What was given up on may say its last word so long.
LAST_WORD_S: Final = 1.0


class Stopped(Exception):
    """The process was told to end before it had begun."""


def heed() -> None:
    """Raise CancelledError if this task was told to end, whatever its last await returned."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def before(stop: asyncio.Event, opening: Coroutine[None, None, T]) -> T:
    """What `opening` returns, unless `stop` is set first: a process that is still waiting for the
    log ends at once.

    Raises Stopped.
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


async def end_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancelled until it is heard: `asyncio.wait_for` passes over a cancellation that comes in the
    moment of its result.
    """
    for _ in range(END_TRIES):
        left = [task for task in tasks if not task.done()]
        if not left:
            return
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=END_AGAIN_S)
