"""The state of a nats-server, told by the process beside it, and that process's answer to an order.

Pure.
"""

import msgspec

STATUS = "status"
RESTART = "restart"
# Its data names the other servers (a msgpack list of strings); more are found by what they tell.
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
    """server -> gateway or server: its health (`libs/embedded/store_watch.py`) with its reasons.

    `process_id` names the server's process; each start has another one. `is_replaced`: it checks or
    obeys an order to empty its store, so no other server may do so now.
    """

    server: str
    # On the wire it has its first name, which processes of earlier versions know.
    process_id: str = msgspec.field(name="life")
    health: str
    reasons: tuple[str, ...] = ()
    free_bytes: int = 0
    replicas: tuple[Replica, ...] = ()
    is_replaced: bool = False


class OrderAnswer(msgspec.Struct, frozen=True):
    """server -> gateway: why it does not carry out an order; empty: it does."""

    refused: str = ""
