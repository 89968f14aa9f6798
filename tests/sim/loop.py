"""A virtual-time event loop: nothing waits, time jumps to the next timer, callbacks run first come
first served.

It owns the only clock of a run, so a run is a pure function of its seed. `Process` is a simulated
operating-system process: the tasks that were started in it and the right to touch the world; a kill
-9 takes both at once. Test: tests/sim/test_loop.py.
"""

import asyncio
import contextvars
import heapq
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

# A run that takes more loop steps than this is stuck in a loop that no time passes in.
STEPS_MAX: Final = 20_000_000

# Tasks that last as long as the process they serve.
SERVING: Final = ("writer", "reader", "shell", "orders", "leadership", "answers")

CURRENT: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("process", default=None)


class Stuck(Exception):
    """No timer is scheduled: every task waits for an event that never comes."""


class SimTask(asyncio.Task[Any]):
    """A task whose hash is a number, so that a set of tasks has the same order in every run."""

    def __init__(self, number: int, coro: Coroutine[Any, Any, Any], **options: Any) -> None:
        self.number = number
        super().__init__(coro, **options)

    def __hash__(self) -> int:
        return self.number


class _Jump:
    """A selector that moves the clock to the next timer instead of waiting."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self.loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise Stuck("no timer and no callback is left")
        if timeout > 0:
            self.loop.now = max(self.loop.now, self.loop._scheduled[0]._when)
        self.loop.steps += 1
        if self.loop.steps > STEPS_MAX:
            raise Stuck(f"{STEPS_MAX} steps and no end")
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """See the module. `now` is in seconds from 0."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.steps = 0
        self._selector = _Jump(self)
        self._clock_resolution = 1e-9
        self._numbers = itertools.count(1)
        self.set_task_factory(self._make_task)

    def time(self) -> float:
        return self.now

    def _process_events(self, events: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:  # type: ignore[override]
        """Do a thread's work at once, because the simulated disk does not wait either."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def postpone(self, process: "Process") -> None:
        """Move all that would run in a paused process to the moment when it goes on."""
        for handle in self._scheduled:
            if handle._context.get(CURRENT) is process:
                handle._when = max(handle._when, process.paused_until)
        heapq.heapify(self._scheduled)
        for place, handle in enumerate(self._ready):
            if handle._context.get(CURRENT) is process:
                # A copy, because the handle enters its own context.
                context = process.context.copy()
                self.call_at(process.paused_until, _go_on, handle, context=context)
                # The present step of the loop has counted what it runs.
                self._ready[place] = asyncio.Handle(_do_nothing, (), self)

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> SimTask:
        task = SimTask(next(self._numbers), coro, loop=self, **options)
        context = options.get("context")
        process = context.get(CURRENT) if context is not None else CURRENT.get()
        if process is not None:
            process.adopt(task)
        return task


def _do_nothing() -> None:
    return


def _go_on(handle: asyncio.Handle) -> None:
    """Run a callback that a pause had stopped."""
    if not handle.cancelled():
        handle._run()


class Process:
    """One simulated process.

    What it holds of the world asks `check` first, which ends a dead process's code at once.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.tasks: dict[int, SimTask] = {}
        self.at_death: list[Callable[[], None]] = []
        self.paused_until = 0.0
        self.silent_until = 0.0  # its connection reaches nothing until then
        self.half_dead_since: float | None = None  # when the first of its serving tasks ended
        self.context = contextvars.copy_context()
        self.context.run(CURRENT.set, self)

    def adopt(self, task: SimTask) -> None:
        self.tasks[task.number] = task
        task.add_done_callback(self._ended)
        if len(self.tasks) > 64:
            self.tasks = {number: kept for number, kept in self.tasks.items() if not kept.done()}
        if not self.alive:
            task.cancel()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if self.alive and self.half_dead_since is None and task.get_name() in SERVING:
            self.half_dead_since = asyncio.get_running_loop().time()

    def spawn(self, coro: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine inside this process."""
        return asyncio.get_running_loop().create_task(coro, context=self.context)

    def check(self) -> None:
        """End a dead process's code; called before it touches anything outside its own memory."""
        if not self.alive:
            raise asyncio.CancelledError(f"{self.name} is dead")

    def pause(self, seconds: float) -> None:
        """Stop the process, as by SIGSTOP, and continue it after `seconds`; ready and due work
        waits.
        """
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.paused_until = loop.now + seconds
        loop.postpone(self)

    def deliver(self, act: Callable[..., None], *args: object, delay_s: float = 0.0) -> None:
        """Let the world call into this process, after `delay_s` and not while it is paused."""
        loop = asyncio.get_running_loop()
        loop.call_at(
            max(loop.time() + delay_s, self.paused_until),
            self._arrive,
            act,
            args,
            context=self.context,
        )

    def _arrive(self, act: Callable[..., None], args: tuple[object, ...]) -> None:
        if self.alive and self.paused_until <= asyncio.get_running_loop().time():
            act(*args)
        elif self.alive:
            self.deliver(act, *args)

    def kill(self) -> None:
        """Kill the process with -9: none of its code has an effect from now on."""
        if not self.alive:
            return
        self.alive = False
        for act in self.at_death:
            act()
        for task in list(self.tasks.values()):
            task.cancel()


def run(main: Coroutine[Any, Any, T]) -> tuple[T, VirtualLoop]:
    """Run to the end on a fresh virtual loop."""
    loop = VirtualLoop()
    try:
        asyncio.set_event_loop(loop)
        return loop.run_until_complete(main), loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()
