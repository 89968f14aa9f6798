"""Sends uploads in pieces to agents that are about to start a job with an uploaded directory.

Each answer depends on the question alone, so any gateway may give any of them. Tests:
tests/integration/test_uploads.py.
"""

import logging
from collections.abc import Callable

import msgspec

from libs.common import subjects
from libs.common.errors import Refused, Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster
from libs.common.transport.bus import Bus
from libs.common.transport.per_sender import PLACES, Places
from libs.common.transport.uploads import UploadAsk, UploadPiece, UploadStore
from services.api_gateway.agents.placed import placed

logger = logging.getLogger(__name__)

_ask = msgspec.msgpack.Decoder(UploadAsk)
_encode = msgspec.msgpack.Encoder().encode


class UploadAnswers:
    """Answers the upload questions of agents.

    If the store is unavailable there is no answer: the agent asks again, perhaps another gateway.
    """

    def __init__(self, cluster: Callable[[], Cluster], bus: Bus, store: UploadStore) -> None:
        self.cluster, self.bus, self.store = cluster, bus, store

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
