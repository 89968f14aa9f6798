"""Reads the messages that nodes send on the bus, and proves their senders.

No other code reads them.

A node's messages come on a subject that ends with its name, and the server's permissions let no
other node publish there. So the subject proves the sender. A message that names another node, or
that cannot be read, is dropped and counted. Held by tests/attack/test_hostile_node.py.
"""

import logging
from collections import Counter
from typing import Final, Protocol, TypeVar

import msgspec

from libs.common.errors import Unavailable
from libs.common.facts import UNDECODABLE
from libs.common.model import NodeId

# A node is named in the log at its first dropped message and then at each power of ten of them.
LOGGED: Final = frozenset(10**power for power in range(18))

logger = logging.getLogger(__name__)
MessageT = TypeVar("MessageT")


class FromNode(Protocol):
    """A message that says which node sent it."""

    @property
    def node_id(self) -> NodeId: ...


FromNodeT = TypeVar("FromNodeT", bound=FromNode)


def sender(subject: str) -> NodeId:
    """The node that a message on `heartbeat.<node>` or the like came from."""
    return NodeId(subject.rpartition(".")[2])


def readable(decoder: "msgspec.msgpack.Decoder[MessageT]", data: bytes, sent_by: str) -> MessageT:
    """Decode the answer of a node. Raises Unavailable if it cannot be read."""
    try:
        return decoder.decode(data)
    except UNDECODABLE as error:
        raise Unavailable(
            f"the answer of {sent_by} cannot be read ({error}): is its agent of this version?"
        ) from error


class Senders:
    """Reads the messages of nodes for one service. `dropped` counts by node."""

    def __init__(self) -> None:
        self.dropped: Counter[NodeId] = Counter()

    def read(
        self, decoder: "msgspec.msgpack.Decoder[FromNodeT]", subject: str, data: bytes
    ) -> FromNodeT | None:
        """The message; None for one that is dropped."""
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
