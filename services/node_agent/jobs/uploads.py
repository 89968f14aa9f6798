"""Fetches a job's uploaded archive from the gateways, in pieces.

`uploads/fetching.py` asks other nodes first where it can. `directories/unpacking.py` verifies and
unpacks it. Tests: tests/integration/test_agent_uploads.py.
"""

from collections.abc import AsyncIterator

from libs.common.errors import Refused
from libs.common.messages import StartOrder
from libs.common.model import NodeId
from libs.common.subjects import ask_uploads
from libs.common.transport.bus import Bus
from libs.common.transport.uploads import UploadAsk, UploadPiece
from services.node_agent.jobs.gateways import ask


async def fetched(
    order: StartOrder, node_id: NodeId, bus: Bus, first: UploadPiece | None = None
) -> AsyncIterator[bytes]:
    """Yield the archive in pieces, each fetched after the one before was taken. Raises Refused.

    `first` is the first piece, if it was fetched already.
    """
    mark = size = 0
    piece = first
    while True:
        if piece is None:
            piece = await ask(
                ask_uploads(node_id), UploadAsk(order.job_id, order.attempt, mark), UploadPiece, bus
            )
        if piece.refused:
            raise Refused(piece.refused)
        yield piece.data
        mark, size = piece.mark, size + len(piece.data)
        if size >= piece.size_bytes or not piece.data:
            return
        piece = None
