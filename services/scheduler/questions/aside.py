"""Answers to questions that take longer than a heartbeat may wait, from a forked child process.

The child has the state as it is now, and costs the scheduler only the copy of its page tables. It
may change its copy. It writes its answer to a pipe and exits, without touching what it shares with
its parent (sockets, loop, signals). One child runs at a time, each with a deadline. `forked` does
the same for one trial of an explanation (`explain/trial.py`).
"""

import asyncio
import gc
import os
import signal
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

from services.scheduler.explain.trial import Trial
from services.scheduler.state.state import State

# Number of waiting questions; more are refused.
WAITING_MAX: Final = 64
# Lower priority than the processes that answer heartbeats.
NICENESS: Final = 10
ANSWER_BYTES_MAX: Final = 1 << 19
FILES_MAX: Final = 1 << 16
# Exit code of a child that failed.
BUG: Final = 2


class Aside:
    """The queue of questions for a forked child."""

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.turn = asyncio.Lock()
        self.waiting = 0

    async def answer(
        self, question: Callable[[], bytes], otherwise: Callable[[str], bytes]
    ) -> bytes:
        """Return what `question` returns in the child; `otherwise` words the reason if there is no
        answer.
        """
        if self.waiting >= WAITING_MAX:
            return otherwise(f"{WAITING_MAX} such questions wait already: ask again in a moment")
        self.waiting += 1
        try:
            async with self.turn:
                answer_bytes = await self._ask(question)
        except TimeoutError:
            return otherwise(f"this took longer than {self.deadline_s:.0f} s")
        finally:
            self.waiting -= 1
        return (
            answer_bytes
            if 0 < len(answer_bytes) <= ANSWER_BYTES_MAX
            else otherwise("the scheduler failed to find out: see its log")
        )

    async def _ask(self, question: Callable[[], bytes]) -> bytes:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(question, writing)
        # Here too, because the deadline may pass before the child has run at all.
        os.setpgid(pid, pid)
        os.close(writing)
        answer = asyncio.create_task(asyncio.to_thread(_read, reading, pid))
        try:
            async with asyncio.timeout(self.deadline_s):
                return await asyncio.shield(answer)
        finally:
            if not answer.done():
                # The group includes a trial that the child has forked.
                os.killpg(pid, signal.SIGKILL)
                await answer


def _child(question: Callable[[], bytes], writing: int) -> NoReturn:
    def work() -> int:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        os.closerange(3, writing)
        os.closerange(writing + 1, FILES_MAX)
        os.nice(NICENESS)
        # The collector would touch, and so copy, all objects.
        gc.disable()
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(question())
        return 0

    _leave(work)


def _leave(work: Callable[[], int]) -> NoReturn:
    """Run `work` and end this process with its result, without running any of the parent's
    clean-up.
    """
    code = BUG
    try:
        code = work()
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _read(reading: int, pid: int) -> bytes:
    with os.fdopen(reading, "rb") as pipe:
        answer_bytes = pipe.read()
    _, status = os.waitpid(pid, 0)
    return answer_bytes if status == 0 else b""


def forked(state: State, trial: Trial) -> bool:
    """Run `trial` in a child of this process and wait for it."""
    pid = os.fork()
    if pid == 0:
        _leave(lambda: int(trial(state)))
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 1), "a trial failed: its trace is on stderr"
    return code == 1
