"""Runs a coroutine in a thread with an event loop of its own, as a part of this process.

A busy main loop delays it by milliseconds only, because the interpreter changes threads. The thread
ends with the process: a kill or a stop takes both. Test: tests/unit/test_leadership.py.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Final

from libs.common.errors import Unavailable

# Time for the work to end after it was cancelled.
END_S: Final = 2.0


async def in_thread(work: Callable[[], Coroutine[None, None, None]], name: str) -> None:
    """Run `work()` in a thread until this coroutine is cancelled. Raises the error of the work,
    Unavailable if it returns.
    """
    here = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = here.create_future()
    loop = asyncio.new_event_loop()
    task = loop.create_task(work(), name=name)

    def live() -> None:
        try:
            loop.run_until_complete(asyncio.wait((task,)))
        finally:
            loop.close()
            _call(here, _settle, ended, task)

    threading.Thread(target=live, name=name, daemon=True).start()
    try:
        error = await asyncio.shield(ended)
    except asyncio.CancelledError:
        _call(loop, task.cancel)
        await asyncio.wait((ended,), timeout=END_S)
        raise
    raise error or Unavailable(f"the thread {name} ended: restart this process")


def _settle(ended: asyncio.Future[BaseException | None], task: asyncio.Task[None]) -> None:
    if not ended.done():
        ended.set_result(task.exception() if task.done() and not task.cancelled() else None)


def _call(loop: asyncio.AbstractEventLoop, act: Callable[..., object], *args: object) -> None:
    """Call `act` in the loop of another thread, unless that loop has ended."""
    try:
        loop.call_soon_threadsafe(act, *args)
    except RuntimeError:
        return
