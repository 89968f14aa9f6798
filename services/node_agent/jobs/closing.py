"""The closing of an attempt whose facts are in the log: copy the end of its output, then forget it.

An attempt is forgotten even if the store did not take the output; it is offered again later, and
not pruned before. Old directories are pruned within this machine's bounds. A closing that fails,
for example without free descriptors, does not end the agent: it is repeated. Tests:
tests/integration/test_pruning.py, test_failed_closings.py.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from libs.common.errors import Unavailable
from libs.common.model import AttemptRef, NodeId
from libs.common.transport.kv import OutputStore, output_key
from services.node_agent.core import actions as a
from services.node_agent.core.state import key_of
from services.node_agent.directories.protocol import JobSupervisors
from services.node_agent.directories.residence import NoResident, Residence
from services.node_agent.jobs.answers import STREAMS

TAIL_BYTES: Final = 64 << 10
COPIES_AT_ONCE: Final = 4
COPIES_WAITING_MAX: Final = 1_000
COPY_TRIES: Final = 3
COPY_AGAIN_S: Final = 1.0
# Closings to repeat. Beyond it an attempt is left to the next agent, which closes it again.
FAILED_MAX: Final = 1_000
# How often old directories are pruned, output that is not copied is offered again, and closings are
# repeated.
LOOK_EVERY_S: Final = 60.0

logger = logging.getLogger(__name__)


class Closing:
    """The closing of attempts on one node."""

    def __init__(
        self,
        node_id: NodeId,
        jobs: JobSupervisors,
        outputs: OutputStore,
        resident: Residence | None = None,
    ) -> None:
        self.node_id = node_id
        self.jobs = jobs
        self.outputs = outputs
        self.resident: Residence = resident or NoResident()
        self.at_once = asyncio.Semaphore(COPIES_AT_ONCE)
        self.waiting = 0
        self.failed: list[a.ForgetJob] = []

    async def run(self) -> None:
        """Repeat closings that failed, copy what is left over and prune, for ever."""
        while True:
            failed, self.failed = self.failed, []
            for action in failed:
                await self.close(action)
            try:
                await self._look()
            except OSError as error:
                logger.warning("old output is not copied or pruned for now: %s", error)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> None:
        for ref, rank in await self.jobs.uncopied():
            if await self._copied(ref, rank, STREAMS, 1):
                await self.jobs.copied(ref)
        await self._prune()

    async def close(self, action: a.ForgetJob) -> None:
        """Close an attempt, or note that it failed: other jobs need the agent."""
        try:
            await self._close(action)
        except Exception:
            logger.exception("%s cannot be closed; the agent tries again", key_of(action.ref))
            self.failed = [*self.failed, action][:FAILED_MAX]

    async def _close(self, action: a.ForgetJob) -> None:
        """Close an attempt. If too many wait, it is forgotten at once and copied later."""
        await self.resident.finished(action.ref, action.healthy, action.ready_ms)
        copied = self.waiting < COPIES_WAITING_MAX
        if copied:
            self.waiting += 1
            try:
                async with self.at_once:
                    copied = await self._copied(action.ref, action.rank, action.streams, COPY_TRIES)
            finally:
                self.waiting -= 1
        await self.jobs.forget(action.ref, copied)
        with contextlib.suppress(Unavailable):  # while old directories are read; pruned later
            await self._prune()

    async def _prune(self) -> None:
        pruned = await self.jobs.prune()
        if pruned.jobs:
            logger.info(
                "the output of %d ended jobs was removed, %d bytes; %d are kept",
                pruned.jobs,
                pruned.size_bytes,
                pruned.jobs_left,
            )

    async def _copied(self, ref: AttemptRef, rank: int, streams: Sequence[str], tries: int) -> bool:
        return all([await self._copy(ref, rank, stream, tries) for stream in streams])

    async def _copy(self, ref: AttemptRef, rank: int, stream: str, tries: int) -> bool:
        piece = await self.jobs.read_output(ref, stream, -TAIL_BYTES, TAIL_BYTES)
        if piece is None or not piece.data:
            return True
        key = output_key(
            node_id=self.node_id, job_id=ref.job_id, attempt=ref.attempt, rank=rank, stream=stream
        )
        for _ in range(tries):
            try:
                await self.outputs.put(key, piece.data)
                return True
            except Unavailable as error:
                logger.warning("the end of %s stays on this node for now: %s", key, error)
            await asyncio.sleep(COPY_AGAIN_S)
        return False
