"""The threads that read how an engine starts, from files of the job's user.

The files may lie on a file system that does not answer, and then a thread waits for ever. So each
tenant has a share of the threads, and keeps a thread until the reading has really ended. Tests:
tests/unit/test_engine_readers.py, tests/integration/test_resident_starts.py.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from libs.common.open_share import OpenShare

# Starts whose engines are read at a time, and how long one waits for that. A thread is made when
# it is needed first.
READERS: Final = 32
READ_S: Final = 10.0
Read = TypeVar("Read")


class EngineReaders:
    """The threads of one agent, shared by all tenants."""

    def __init__(self) -> None:
        self.share = OpenShare(READERS)
        self._threads = ThreadPoolExecutor(READERS, "engines")
        self._freed = asyncio.Event()

    async def read(self, tenant: str, work: Callable[[], Read]) -> Read:
        """Return the result of `work`, which runs in one of the tenant's threads.

        Raises TimeoutError if that takes too long; then `work` keeps its thread until it ends.
        """
        error = (
            f"no thread was free within {READ_S:g} s to read its engine and configuration, because "
            "earlier starts of this node still read theirs: check the file systems of those models"
        )
        try:
            async with asyncio.timeout(READ_S):
                while self.share.take(tenant):
                    await self._freed.wait()
                error = f"its engine and configuration could not be read within {READ_S:g} s"
                return await asyncio.wrap_future(self._begin(tenant, work))
        except TimeoutError:
            raise TimeoutError(error) from None

    def _begin(self, tenant: str, work: Callable[[], Read]) -> Future[Read]:
        """Give the work to a thread. One is free, because there are as many as places."""
        loop = asyncio.get_running_loop()
        try:
            reading = self._threads.submit(work)
        except RuntimeError:  # no thread can be started
            self._give_back(tenant)
            raise
        reading.add_done_callback(partial(self._ended, loop, tenant))
        return reading

    def _ended(self, loop: asyncio.AbstractEventLoop, tenant: str, reading: Future[Read]) -> None:
        with suppress(RuntimeError):  # the agent has ended before the thread
            loop.call_soon_threadsafe(self._give_back, tenant)

    def _give_back(self, tenant: str) -> None:
        self.share.give_back(tenant)
        self._freed.set()
        self._freed = asyncio.Event()

    def close(self) -> None:
        """Begin nothing more. Threads that wait for files stay."""
        self._threads.shutdown(wait=False, cancel_futures=True)
