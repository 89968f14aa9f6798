"""The threads that read checkpoints: one for each tenant that has some to read.

So no tenant waits for another one's disks. A file system may not answer, so a thread ends only when
all its reads have really ended. Tests: tests/unit/test_checkpoint_readers.py.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

Read = TypeVar("Read")


class CheckpointReaders:
    """The threads of one agent. `reads` counts the reads of each tenant that have not ended."""

    def __init__(self) -> None:
        self.reads: dict[str, int] = {}
        self._threads: dict[str, ThreadPoolExecutor] = {}

    async def read(self, tenant: str, work: Callable[[], Read]) -> Read:
        """Return the result of `work`, which runs in the tenant's thread after its earlier reads.

        If this call is cancelled, `work` keeps the thread until it ends.
        """
        thread = self._threads.get(tenant)
        if thread is None:
            thread = self._threads[tenant] = ThreadPoolExecutor(1, "checkpoints")
        self.reads[tenant] = self.reads.get(tenant, 0) + 1
        try:
            reading = thread.submit(work)
        except RuntimeError:  # no thread can be started, or the agent ends
            self._over(tenant)
            raise
        reading.add_done_callback(partial(self._ended, asyncio.get_running_loop(), tenant))
        return await asyncio.wrap_future(reading)

    def _ended(self, loop: asyncio.AbstractEventLoop, tenant: str, reading: Future[Read]) -> None:
        with suppress(RuntimeError):  # the agent has ended before the thread
            loop.call_soon_threadsafe(self._over, tenant)

    def _over(self, tenant: str) -> None:
        """Note the end of a read, and end the thread after the tenant's last one."""
        self.reads[tenant] -= 1
        if not self.reads[tenant]:
            del self.reads[tenant]
            self._threads.pop(tenant).shutdown(wait=False)

    def close(self) -> None:
        """Begin no read that waits. Threads that wait for files stay."""
        for thread in list(self._threads.values()):
            thread.shutdown(wait=False, cancel_futures=True)
