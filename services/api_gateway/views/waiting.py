"""Requests that wait: for a sequence to be folded, for a job to change, or for any change.

No request polls: the fold wakes exactly the requests that wait for what it changed. Tests:
tests/unit/test_gateway_log_end.py.
"""

import asyncio
import heapq
from collections.abc import Iterable
from typing import Final

from libs.common.model import JobId, NodeId
from libs.common.transport.log import Log

WATCHERS_MAX: Final = 1_000
# Past this many, waiters that gave up are swept out.
SWEEP_ABOVE: Final = 10_000


class Watcher:
    """One watch's backlog: the jobs and nodes that changed since the watch last took it.

    A job that changes often appears once, so the state's size bounds the backlog.
    """

    def __init__(self) -> None:
        self.jobs: dict[JobId, int] = {}
        self.nodes: dict[NodeId, int] = {}
        self.woken = asyncio.Event()

    def take(self) -> tuple[dict[JobId, int], dict[NodeId, int]]:
        """Return the changed jobs and nodes since the last call."""
        taken = self.jobs, self.nodes
        self.jobs, self.nodes = {}, {}
        self.woken.clear()
        return taken


class LogEnd:
    """The last sequence of the log. Requests that need it at the same time share one question."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._last = 0
        self._begun = 0
        self._answered = 0
        self._lock = asyncio.Lock()

    async def last(self, seq: int) -> int:
        """Return the log's last sequence, asked after this call began; a known one if it is at
        least `seq`.

        Raises Unavailable.
        """
        begun = self._begun
        async with self._lock:
            # A question that began before this call may miss a commit that the client has seen.
            if seq > self._last and self._answered <= begun:
                self._begun += 1
                number = self._begun
                self._last = (await self.log.bounds())[1]
                self._answered = number
            return self._last


class Waiting:
    """All waiters of one gateway."""

    def __init__(self) -> None:
        self.by_seq: list[tuple[int, int, asyncio.Future[None]]] = []
        self.by_job: dict[JobId, list[asyncio.Future[None]]] = {}
        self.watchers: set[Watcher] = set()
        self._count = 0

    def sequence(self, seq: int) -> asyncio.Future[None]:
        """Return a future that is done when `seq` is folded."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._count += 1
        if len(self.by_seq) > SWEEP_ABOVE:
            self.by_seq = [waiter for waiter in self.by_seq if not waiter[2].done()]
            heapq.heapify(self.by_seq)
        heapq.heappush(self.by_seq, (seq, self._count, future))
        return future

    async def job(self, job_id: JobId, timeout_s: float) -> None:
        """Wait until the job changes, at most `timeout_s`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiters = self.by_job.setdefault(job_id, [])
        waiters.append(future)
        try:
            await asyncio.wait((future,), timeout=timeout_s)
        finally:
            if not future.done():
                waiters.remove(future)
                if not waiters and self.by_job.get(job_id) is waiters:
                    del self.by_job[job_id]

    def folded(self, seq: int) -> None:
        """Wake the requests that wait for `seq` or an earlier commit."""
        while self.by_seq and self.by_seq[0][0] <= seq:
            _, _, future = heapq.heappop(self.by_seq)
            if not future.done():
                future.set_result(None)

    def changed(self, seq: int, jobs: Iterable[JobId], nodes: Iterable[NodeId]) -> None:
        """Wake the requests that wait for these jobs and nodes."""
        for job_id in jobs:
            for future in self.by_job.pop(job_id, ()):
                if not future.done():
                    future.set_result(None)
            for watcher in self.watchers:
                watcher.jobs[job_id] = seq
                watcher.woken.set()
        for node_id in nodes:
            for watcher in self.watchers:
                watcher.nodes[node_id] = seq
                watcher.woken.set()
