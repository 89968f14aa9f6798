"""Tells agents from which node they can fetch kept weights, and gets the token for them.

The asking node's name is that of the subject, and it must have an entry of the same request. The
serving node checks again that it keeps these weights for that tenant, and signs the token for the
asking node. The bytes pass no gateway. Tests: tests/integration/test_peer_weights.py,
tests/attack/test_kept_weights.py.
"""

import asyncio
import logging
from collections.abc import Callable

import msgspec

from libs.common import subjects
from libs.common.errors import Refused
from libs.common.facts import UNDECODABLE
from libs.common.messages.link_messages import LinkAsk
from libs.common.messages.weight_messages import WeightsAsk, WeightsOffer
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Cluster
from libs.common.state.kept import Kept
from libs.common.transport.bus import Bus
from libs.common.transport.per_sender import PLACES, Places
from services.api_gateway.agents.link_tokens import first_granted
from services.api_gateway.agents.placed import LOOK_S, PLACED_WAIT_S
from services.api_gateway.agents.weight_sources import may_come, own_request, sources

logger = logging.getLogger(__name__)

_ask = msgspec.msgpack.Decoder(WeightsAsk)
_encode = msgspec.msgpack.Encoder().encode


class WeightAnswers:
    """Answers the questions of agents for kept weights."""

    def __init__(self, cluster: Callable[[], Cluster], bus: Bus) -> None:
        self.cluster, self.bus = cluster, bus

    async def listen(self) -> None:
        """Listen in the queue group of all gateways, so that one of them answers."""
        bounded = Places(self._on_ask)
        await self.bus.subscribe(
            subjects.ask_weights("*"), bounded, concurrent=True, queue="gateways", places=PLACES
        )

    async def _on_ask(self, subject: str, data: bytes) -> bytes:
        node_id = NodeId(subject.rpartition(".")[2])
        try:
            return _encode(await self.offer(_ask.decode(data), node_id))
        except (*UNDECODABLE, Refused) as error:
            logger.warning("no weights were offered to node %s: %s", node_id, error)
            return _encode(WeightsOffer(refused=str(error)))

    async def offer(self, ask: WeightsAsk, node_id: NodeId) -> WeightsOffer:
        """Return the offer for one question. Raises Refused."""
        kept = await self._own_request(ask, node_id)
        if ask.differs and not kept.files_given:
            raise Refused(
                "another node recorded the SHA-256 of the files: give them with --sha256sums, and "
                "this node fetches the files"
            )
        found = sources(self.cluster(), kept, node_id, ask.avoided)
        if ask.measures and found:
            return _offer(kept, found[0])
        link = LinkAsk(
            dialler=node_id,
            tenant=kept.tenant,
            job_id=JobId(""),
            attempt=0,
            path=b"",
            model=kept.model,
            request=kept.request,
        )
        asked = await first_granted(self.bus, found, link)
        if asked.granted.token:
            return msgspec.structs.replace(
                _offer(kept, asked.node_id),
                address=asked.granted.address,
                token=asked.granted.token,
                offer=asked.granted.offer,
                silent=asked.silent,
            )
        waits = asked.is_busy or may_come(self.cluster(), kept, node_id, ask.avoided)
        return WeightsOffer(
            waits=waits or not asked.is_whole,
            silent=asked.silent,
            refused="no other node has these weights ready",
        )

    async def _own_request(self, ask: WeightsAsk, node_id: NodeId) -> Kept:
        """Return the request; wait a moment for it, as the agent may know it before this fold."""
        for _ in range(int(PLACED_WAIT_S / LOOK_S)):
            try:
                return own_request(self.cluster(), node_id, ask.model, ask.request)
            except Refused:
                await asyncio.sleep(LOOK_S)
        return own_request(self.cluster(), node_id, ask.model, ask.request)


def _offer(kept: Kept, source: NodeId) -> WeightsOffer:
    return WeightsOffer(
        node_id=source, size_bytes=kept.entries[source].size_bytes, files=kept.files
    )
