"""What the process beside a nats-server tells gateways about it, and its answer to their orders.

Pure.
"""

import msgspec

STATUS = "status"
RESTART = "restart"
REPLACE = "replace"
# Its data is the number of servers that shall store each stream, as text.
REPLICAS = "replicas"


class Replica(msgspec.Struct, frozen=True):
    """One stream as one server stores it. `servers` are all that shall store it, also absent ones.

    `first` and `last` are sequences, `leader` is a server's name; empty: none is known.
    """

    stream: str
    leader: str
    servers: tuple[str, ...]
    commits: int
    bytes: int
    first: int
    last: int


class ServerStatus(msgspec.Struct, frozen=True):
    """server -> gateway: its health (`libs/embedded/store_watch.py`) with the server's reasons.

    `life` names one life of the server's process.
    """

    server: str
    life: str
    health: str
    reasons: tuple[str, ...] = ()
    free_bytes: int = 0
    replicas: tuple[Replica, ...] = ()


class OrderAnswer(msgspec.Struct, frozen=True):
    """server -> gateway: why it does not carry out an order; empty: it does."""

    refused: str = ""
