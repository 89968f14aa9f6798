"""Tells agents from which node they can fetch kept weights, and gets the token for them.

The asking node's name is that of the subject, and it must have an entry of the same request. The
serving node checks again that it keeps these weights for that tenant, and signs the token for the
asking node. The bytes pass no gateway. Tests: tests/integration/test_peer_weights.py,
tests/attack/test_kept_weights.py.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from libs.common import subjects
from libs.common.errors import Refused, Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.messages.file_messages import BUSY
from libs.common.messages.link_messages import LinkAsk, LinkGranted
from libs.common.messages.weight_messages import WeightsAsk, WeightsOffer
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Cluster
from libs.common.state.kept import Kept
from libs.common.transport.bus import Bus
from libs.common.transport.per_sender import PLACES, Places
from services.api_gateway.agents.placed import LOOK_S, PLACED_WAIT_S
from services.api_gateway.agents.weight_sources import may_come, own_request, sources

# Serving nodes that one answer asks for a token, all of them within the agent's own deadline.
TRIES: Final = 8
ALL_S: Final = 4.0

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
        silent, is_busy = list[NodeId](), False
        loop = asyncio.get_running_loop()
        by_s = loop.time() + ALL_S
        for source in found[:TRIES]:
            granted = await self._granted(kept, source, node_id, by_s - loop.time())
            if granted is None:
                silent.append(source)
            elif granted.token:
                return msgspec.structs.replace(
                    _offer(kept, source),
                    address=granted.address,
                    token=granted.token,
                    offer=granted.offer,
                    silent=tuple(silent),
                )
            elif granted.fault == BUSY:
                is_busy = True
            else:
                logger.warning("node %s gives no weights: %s", source, granted.text)
                silent.append(source)
            if loop.time() >= by_s:
                break
        waits = is_busy or may_come(self.cluster(), kept, node_id, ask.avoided)
        return WeightsOffer(
            waits=waits or len(found) > TRIES,
            silent=tuple(silent),
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

    async def _granted(
        self, kept: Kept, source: NodeId, dialler: NodeId, within_s: float
    ) -> LinkGranted | None:
        """Return the serving node's answer; None if it does not answer."""
        ask = LinkAsk(
            dialler=dialler,
            tenant=kept.tenant,
            job_id=JobId(""),
            attempt=0,
            path=b"",
            model=kept.model,
            request=kept.request,
        )
        subject = subjects.ask_node(source, "link")
        try:
            answer = await self.bus.request(subject, _encode(ask), max(within_s, LOOK_S))
            return msgspec.msgpack.decode(answer, type=LinkGranted)
        except (Unavailable, *UNDECODABLE) as error:
            logger.warning("node %s does not answer for weights: %s", source, error)
            return None


def _offer(kept: Kept, source: NodeId) -> WeightsOffer:
    return WeightsOffer(
        node_id=source, size_bytes=kept.entries[source].size_bytes, files=kept.files
    )
