"""Sends uploads in pieces to agents that are about to start a job with an uploaded directory.

A large one comes from another node that runs such a job, if there is one: the gateway names it and
gets its token, for the upload of the asking node's own job only. A piece depends on the question
alone, so any gateway may give any of them. Tests: tests/integration/test_uploads.py,
tests/integration/test_peer_uploads.py.
"""

import logging
from collections.abc import Callable, Collection
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.errors import Refused, Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.messages.link_messages import LinkAsk
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Cluster, Job
from libs.common.transport.bus import Bus
from libs.common.transport.per_sender import PLACES, Places
from libs.common.transport.uploads import (
    SMALL_BYTES,
    Upload,
    UploadAsk,
    UploadPiece,
    UploadStore,
)
from services.api_gateway.agents.link_tokens import first_granted
from services.api_gateway.agents.placed import placed
from services.api_gateway.agents.upload_sources import relatives, spread

# Jobs that are remembered for an upload, and uploads.
JOBS_MAX: Final = 256
UPLOADS_MAX: Final = 256

logger = logging.getLogger(__name__)

_ask = msgspec.msgpack.Decoder(UploadAsk)
_encode = msgspec.msgpack.Encoder().encode


class UploadAnswers:
    """Answers the upload questions of agents.

    If the store is unavailable there is no answer: the agent asks again, perhaps another gateway.
    """

    def __init__(self, cluster: Callable[[], Cluster], bus: Bus, store: UploadStore) -> None:
        self.cluster, self.bus, self.store = cluster, bus, store
        # Jobs whose nodes asked lately, by tenant and hash.
        self._asked: dict[tuple[str, str], dict[JobId, None]] = {}

    async def listen(self) -> None:
        """Listen in the queue group of all gateways, so that one of them sends the bytes."""
        bounded = Places(self._on_ask)
        await self.bus.subscribe(
            subjects.ask_uploads("*"), bounded, concurrent=True, queue="gateways", places=PLACES
        )

    async def _on_ask(self, subject: str, data: bytes) -> bytes | None:
        node_id = NodeId(subject.rpartition(".")[2])
        try:
            return _encode(await self._piece(_ask.decode(data), node_id))
        except (*UNDECODABLE, Refused) as error:
            logger.warning("an upload was not given to node %s: %s", node_id, error)
            return _encode(UploadPiece(refused=str(error)))
        except Unavailable as error:
            logger.warning("an upload was not given to node %s yet: %s", node_id, error)
            return None

    async def _piece(self, ask: UploadAsk, node_id: NodeId) -> UploadPiece:
        job = await placed(self.cluster, ask.job_id, ask.attempt, node_id)
        found = await self.store.find(job.tenant, job.spec.upload)
        if found is not None and ask.peers and found.size_bytes > SMALL_BYTES:
            offered = await self._offered(found, job, node_id, ask.avoided)
            if offered is not None:
                return offered
        piece = (
            await self.store.piece(job.tenant, job.spec.upload, ask.mark)
            if found is not None
            else None
        )
        if found is None or piece is None:
            raise Refused(
                f"its upload {job.spec.upload[:12]} is not stored any more: submit the job "
                "again with --upload"
            )
        return UploadPiece(found.size_bytes, piece.mark, piece.data)

    async def _offered(
        self, found: Upload, job: Job, node_id: NodeId, avoided: Collection[NodeId]
    ) -> UploadPiece | None:
        """Return a node that has the upload, or that the agent waits; None: the gateway gives it.

        `job` is the asking node's own, so the token is for nothing else.
        """
        jobs = relatives(self.cluster(), job, self._remembered(job))
        sources, is_seed = spread(self.cluster(), jobs, node_id, avoided)
        if not sources:
            return None if is_seed else UploadPiece(found.size_bytes, waits=True)
        link = LinkAsk(
            dialler=node_id,
            tenant=job.tenant,
            job_id=JobId(""),
            attempt=0,
            path=b"",
            upload=job.spec.upload,
        )
        asked = await first_granted(self.bus, sources, link)
        if asked.granted.token:
            return UploadPiece(
                size_bytes=found.size_bytes,
                node_id=asked.node_id,
                address=asked.granted.address,
                token=asked.granted.token,
                offer=asked.granted.offer,
                silent=asked.silent,
            )
        waits = asked.is_busy or not asked.is_whole or bool(asked.silent)
        return UploadPiece(found.size_bytes, waits=True, silent=asked.silent) if waits else None

    def _remembered(self, job: Job) -> tuple[JobId, ...]:
        """Return the jobs with the same upload that asked lately, and remember this one."""
        owner = job.tenant, job.spec.upload
        jobs = self._asked.pop(owner, {})
        jobs.pop(job.job_id, None)
        found = tuple(jobs)
        self._asked[owner] = jobs
        jobs[job.job_id] = None
        if len(jobs) > JOBS_MAX:
            del jobs[next(iter(jobs))]
        if len(self._asked) > UPLOADS_MAX:
            del self._asked[next(iter(self._asked))]
        return found
