"""The sockets on which a gateway listens."""

import socket

import pytest

from services.api_gateway.http.listeners import ACCEPTS, listeners


def test_each_address_of_the_host_has_sockets_that_share_one_queue() -> None:
    found = listeners("127.0.0.1", 0, 8)
    try:
        assert len(found) == ACCEPTS
        assert len({each.getsockname() for each in found}) == 1
        assert len({each.fileno() for each in found}) == ACCEPTS
        with socket.create_connection(found[0].getsockname()):
            found[-1].setblocking(True)
            found[-1].accept()[0].close()
    finally:
        for each in found:
            each.close()


def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_open() -> None:
    taken = listeners("127.0.0.1", 0, 8)
    try:
        with pytest.raises(OSError, match="in use"):
            listeners("127.0.0.1", taken[0].getsockname()[1], 8)
    finally:
        for each in taken:
            each.close()
