"""The serving tasks of one process: when one of them ends, all end, even if a cancellation is lost.

`asyncio.TaskGroup` cancels each task once and then waits without a bound. A task whose library
loses that cancellation keeps the group alive for ever, and with it a process that no longer serves.
Here the tasks are cancelled until they end, and a separate task waits for them. Test:
tests/unit/test_serving_tasks.py.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Final

from libs.common.process.cancellation import end_all

# Largest number of rounds in which ending tasks may start others.
ENDINGS_MAX: Final = 50

logger = logging.getLogger(__name__)


class ServingTasks:
    """Tasks that end together. Create it inside a running event loop."""

    def __init__(self) -> None:
        self.work: dict[asyncio.Task[None], None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._first: asyncio.Future[asyncio.Task[None]] = asyncio.get_running_loop().create_future()

    def serve(self, life: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        """Start a task that lasts as long as the process. Its end, by error or return, ends all."""
        task = self._begin(life, name)
        task.add_done_callback(self._end)
        return task

    def spawn(self, work: Coroutine[None, None, None], name: str = "work") -> asyncio.Task[None]:
        """Start a task that may end (listed in `work` until then).

        Only its error ends all tasks.
        """
        task = self._begin(work, name)
        self.work[task] = None
        task.add_done_callback(self._worked)
        return task

    async def ended(self) -> None:
        """Wait for the first end of a task, end the others, and raise the first task's error."""
        try:
            await asyncio.wait((self._first,))
        finally:
            # In a task of its own: if this one is cancelled again meanwhile, the others are still
            # cancelled until they end.
            await asyncio.shield(asyncio.ensure_future(self._end_all()))
        self._first.result().result()

    async def _end_all(self) -> None:
        """End every task, also those that other tasks start while they end."""
        ended: dict[asyncio.Task[None], None] = {}
        for _ in range(ENDINGS_MAX):
            left = [task for task in self._tasks if task not in ended and not task.done()]
            if not left:
                return
            await end_all(left)
            ended |= dict.fromkeys(left)
        logger.warning(
            "ending tasks started new ones %d times: the others end with the process",
            ENDINGS_MAX,
        )

    def _begin(self, life: Coroutine[None, None, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(life, name=name)
        self._tasks[task] = None
        return task

    def _worked(self, task: asyncio.Task[None]) -> None:
        self.work.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self._end(task)
        elif not self._first.done():
            self._tasks.pop(task, None)

    def _end(self, task: asyncio.Task[None]) -> None:
        error = (
            None if task.cancelled() else task.exception()
        )  # asked for, so that asyncio does not report it as lost
        if not self._first.done():
            self._first.set_result(task)
        elif error is not None:
            logger.warning("task %s failed while its process ended: %s", task.get_name(), error)


async def serve_together(**lives: Coroutine[None, None, None]) -> None:
    """Run these coroutines until the first of them ends, then end the others.

    Raises the first one's error, if it had one.
    """
    tasks = ServingTasks()
    for name, life in lives.items():
        tasks.serve(life, name)
    await tasks.ended()


async def until(stop: asyncio.Event) -> None:
    """Return once `stop` is set: the task that ends a process on request."""
    await stop.wait()
