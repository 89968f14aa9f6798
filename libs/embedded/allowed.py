"""The processes that a NATS server knows, and lists of their subjects (`permissions.py`).

Pure.
"""

import msgspec


class Fleet(msgspec.Struct, frozen=True):
    """The processes that a server knows.

    `joined` are nodes of other machines, which keep their seeds themselves. `isolated`: each node
    has an account of its own, and reads the last message of its subject by direct get. Otherwise it
    may read FACTS by sequence, for a log that asks the leader with MSG.GET.
    """

    nodes: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    gateways: tuple[str, ...] = ("a",)
    isolated: bool = True

    @property
    def all_nodes(self) -> tuple[str, ...]:
        return (*self.nodes, *self.joined)


class Allowed(msgspec.Struct, frozen=True):
    """The subjects that one process may use. The server refuses all others."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


class Crossing(msgspec.Struct, frozen=True):
    """The subjects between a node's account and CORE.

    `asks`: requests of the node to CORE. `told`: messages from CORE to the node. `answers`:
    requests of CORE to the node.
    """

    asks: tuple[str, ...]
    told: tuple[str, ...]
    answers: tuple[str, ...]
