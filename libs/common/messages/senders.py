"""Decodes the messages that nodes send on the bus, and verifies their senders.

No other code decodes them. A node's messages come on a subject that ends with its name, and the
server's permissions let no other node publish there. So the subject proves the sender. A message
that names another node, or that cannot be decoded, is dropped and counted. Test:
tests/attack/test_hostile_node.py.
"""

import logging
from collections import Counter
from typing import Final, Protocol, TypeVar

import msgspec

from libs.common.errors import Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.model import NodeId

# Counts of dropped messages at which a warning is logged: 1 and every power of ten.
LOGGED: Final = frozenset(10**power for power in range(18))

logger = logging.getLogger(__name__)
MessageT = TypeVar("MessageT")


class FromNode(Protocol):
    """A message with the name of the node that sent it."""

    @property
    def node_id(self) -> NodeId: ...


FromNodeT = TypeVar("FromNodeT", bound=FromNode)


def sender(subject: str) -> NodeId:
    """Return the node that sent a message on a subject such as `heartbeat.<node>`."""
    return NodeId(subject.rpartition(".")[2])


def readable(decoder: "msgspec.msgpack.Decoder[MessageT]", data: bytes, sent_by: str) -> MessageT:
    """Decode the answer of a node. Raises Unavailable if it cannot be decoded."""
    try:
        return decoder.decode(data)
    except UNDECODABLE as error:
        raise Unavailable(
            f"the answer of {sent_by} cannot be read ({error}): check that its agent has the same "
            "version as this process"
        ) from error


class Senders:
    """Decodes the messages of nodes for one service. `dropped` counts by node."""

    def __init__(self) -> None:
        self.dropped: Counter[NodeId] = Counter()

    def read(
        self, decoder: "msgspec.msgpack.Decoder[FromNodeT]", subject: str, data: bytes
    ) -> FromNodeT | None:
        """Return the message; None if it is dropped."""
        node_id = sender(subject)
        try:
            message = decoder.decode(data)
        except UNDECODABLE as error:
            self._drop(node_id, subject, f"it cannot be read ({error})")
            return None
        if message.node_id != node_id:
            self._drop(node_id, subject, f"it says that {message.node_id[:64]!r} sent it")
            return None
        return message

    def _drop(self, node_id: NodeId, subject: str, why: str) -> None:
        self.dropped[node_id] += 1
        if self.dropped[node_id] in LOGGED:
            logger.warning(
                "a message on %s is dropped: %s (%d so far)", subject, why, self.dropped[node_id]
            )
