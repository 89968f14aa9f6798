"""Diagnoses a job of which an agent reports no progress, twice, and records what both times agree.

The node's name in the subject proves the sender, which must run the attempt. A report costs two
diagnoses, so a gateway follows at most AT_ONCE reports, NODE_AT_ONCE of a node and one of each job.
Tests: tests/integration/test_gateway_diagnoses.py.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from libs.common import subjects
from libs.common.diagnosis.evidence import SilenceTold
from libs.common.diagnosis.rules import automatic
from libs.common.errors import MusterError, Refused
from libs.common.facts import UNDECODABLE
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Job
from libs.common.transport.per_sender import PLACES, Places
from services.api_gateway.agents.placed import placed
from services.api_gateway.diagnosis.asking import Busy, Evidence
from services.api_gateway.views.diagnosis_words import fact_of, is_news

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

# Time between the two diagnoses, or a half of the silence after which a job is diagnosed.
AGAIN_S: Final = 60.0
AT_ONCE: Final = 16
NODE_AT_ONCE: Final = 4

logger = logging.getLogger(__name__)

_told = msgspec.msgpack.Decoder(SilenceTold)


class SilenceAnswers:
    """The answers of one gateway to agents that report silence. Without a time none is followed.

    `open` maps a job to its examination, and `told_by` to the node that reported it.
    """

    def __init__(self, gateway: "Gateway", evidence: Evidence) -> None:
        self.gateway, self.evidence = gateway, evidence
        self.after_s = gateway.settings.diagnose_after_s
        self.open: dict[JobId, asyncio.Task[None]] = {}
        self.told_by: dict[JobId, NodeId] = {}

    async def listen(self) -> None:
        """Listen in the queue group of all gateways, so that one of them answers."""
        await self.gateway.bus.subscribe(
            subjects.ask_diagnosis("*"),
            Places(self._on_told),
            concurrent=True,
            queue="gateways",
            places=PLACES,
        )

    async def _on_told(self, subject: str, data: bytes) -> bytes:
        node_id = NodeId(subject.rpartition(".")[2])
        try:
            told = _told.decode(data)
            job = await placed(lambda: self.gateway.cluster, told.job_id, told.attempt, node_id)
        except (*UNDECODABLE, Refused) as error:
            logger.warning("node %s reports no silence that counts: %s", node_id, error)
            return b""
        if self.after_s > 0 and job.job_id not in self.open and self._has_place(node_id):
            task = asyncio.create_task(self._examine(job.job_id, told.attempt))
            self.open[job.job_id] = task
            self.told_by[job.job_id] = node_id
            task.add_done_callback(lambda _: self._close(job.job_id))
        return b""

    def _has_place(self, node_id: NodeId) -> bool:
        own = list(self.told_by.values()).count(node_id)
        return len(self.open) < AT_ONCE and own < NODE_AT_ONCE

    def _close(self, job_id: JobId) -> None:
        self.open.pop(job_id, None)
        self.told_by.pop(job_id, None)

    async def _examine(self, job_id: JobId, attempt: int) -> None:
        try:
            job = self._job(job_id, attempt)
            first = await self.evidence.of(job, dumps=False)
            await asyncio.sleep(min(AGAIN_S, self.after_s / 2))
            job = self._job(job_id, attempt)
            second = await self.evidence.of(job, dumps=False)
            verdict = automatic(first, second, self.after_s)
            job = self._job(job_id, attempt)
            if verdict is not None and is_news(job, verdict):
                await self.gateway.record(fact_of(job, verdict, user="", automatic=True))
        except (MusterError, Busy) as error:
            logger.warning("job %s shows no progress and was not diagnosed: %s", job_id, error)

    def _job(self, job_id: JobId, attempt: int) -> Job:
        """Return the job. Raises Refused if the attempt is over."""
        job = self.gateway.cluster.jobs.get(job_id)
        if job is None or job.attempt != attempt:
            raise Refused(f"attempt {attempt} of {job_id} is over")
        return job
