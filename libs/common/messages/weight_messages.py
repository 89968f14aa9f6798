"""Messages about kept weights that travel from node to node, between an agent and a gateway.

Pure. docs/decisions/0051 describes who may have which weights.
"""

import msgspec

from libs.common.messages.link_messages import LinkOffer
from libs.common.model import NodeId


class WeightsAsk(msgspec.Struct, frozen=True):
    """agent -> gateway: a node that has the weights of a request to keep (tier host).

    With `measures` the agent needs only the size. `differs`: it has other files than the recorded
    ones. `avoided` are nodes that failed it a while ago.
    """

    model: str
    request: int
    measures: bool = False
    differs: bool = False
    avoided: tuple[NodeId, ...] = ()


class WeightsOffer(msgspec.Struct, frozen=True):
    """gateway -> agent: the node to fetch from, with its token and the address of its links.

    `files` are the recorded SHA-256 by path. `waits`: no node can serve now, but one may soon.
    `silent` are nodes that gave the gateway no token. `refused` says why nothing is offered.
    `offer` is the transport that the node offers for the link.
    """

    node_id: NodeId = NodeId("")
    address: str = ""
    token: bytes = b""
    size_bytes: int = 0
    files: dict[str, str] = {}
    waits: bool = False
    silent: tuple[NodeId, ...] = ()
    refused: str = ""
    offer: LinkOffer = LinkOffer()
