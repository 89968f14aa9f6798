"""Asks serving nodes for a link token on behalf of a dialling node, one after another.

The bytes pass no gateway. Tests: tests/integration/test_peer_weights.py,
tests/integration/test_peer_uploads.py.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.messages.file_messages import BUSY
from libs.common.messages.link_messages import LinkAsk, LinkGranted
from libs.common.model import NodeId
from libs.common.transport.bus import Bus
from services.api_gateway.agents.placed import LOOK_S

# Serving nodes that one answer asks for a token, all of them within the agent's own deadline.
TRIES: Final = 8
ALL_S: Final = 4.0

logger = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode


class Round(NamedTuple):
    """The result: the node that granted, or none. `silent` gave none, `is_busy`: one has no room.

    `is_whole`: all sources were asked.
    """

    node_id: NodeId
    granted: LinkGranted
    silent: tuple[NodeId, ...]
    is_busy: bool
    is_whole: bool


async def first_granted(bus: Bus, sources: Sequence[NodeId], ask: LinkAsk) -> Round:
    """Return the token of the first source that grants one."""
    silent, is_busy = list[NodeId](), False
    loop = asyncio.get_running_loop()
    by_s = loop.time() + ALL_S
    for source in sources[:TRIES]:
        granted = await _granted(bus, source, ask, by_s - loop.time())
        if granted is None:
            silent.append(source)
        elif granted.token:
            return Round(source, granted, tuple(silent), is_busy, is_whole=True)
        elif granted.fault == BUSY:
            is_busy = True
        else:
            logger.warning("node %s gives no token: %s", source, granted.text)
            silent.append(source)
        if loop.time() >= by_s:
            break
    is_whole = len(sources) <= TRIES
    return Round(NodeId(""), LinkGranted(), tuple(silent), is_busy, is_whole)


async def _granted(bus: Bus, source: NodeId, ask: LinkAsk, within_s: float) -> LinkGranted | None:
    """Return the serving node's answer; None if it does not answer."""
    subject = subjects.ask_node(source, "link")
    try:
        answer = await bus.request(subject, _encode(ask), max(within_s, LOOK_S))
        return msgspec.msgpack.decode(answer, type=LinkGranted)
    except (Unavailable, *UNDECODABLE) as error:
        logger.warning("node %s does not answer for a token: %s", source, error)
        return None
