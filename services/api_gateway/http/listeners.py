"""The sockets on which a gateway listens.

The event loop accepts one connection of each listening socket in a turn. While thousands of clients
send bytes a turn is long, so new clients would wait for seconds. Therefore each socket is there
ACCEPTS times: all share one queue of connections, and so many are accepted in a turn.
Tests: tests/unit/test_gateway_listeners.py, tests/attack/test_slow_clients.py.
"""

import socket
from typing import Final

# Each connection that arrives alone wakes all of them, which costs a microsecond each.
ACCEPTS: Final = 16
# The kernel keeps at most so many bytes that it could not send yet, else megabytes. So a client
# that does not read is noticed soon, and costs little memory. Accepted connections inherit it.
UNSENT_BYTES_MAX: Final = 128 << 10


def listeners(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return sockets that listen at all addresses of the host. Raises OSError."""
    found: list[socket.socket] = []
    addresses = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    try:
        for family, kind, protocol, _, address in dict.fromkeys(addresses):
            bound = socket.socket(family, kind, protocol)
            found.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES_MAX)
            if family == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.setblocking(False)
            bound.bind(address)
            bound.listen(backlog)
            found += [bound.dup() for _ in range(ACCEPTS - 1)]
    except OSError:
        for each in found:
            each.close()
        raise
    return found
