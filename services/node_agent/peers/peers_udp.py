"""The real channel of peers: one UDP socket on the node's own address. Twin: the simulation's.

The port of the agent's last life is tried first, so that the rosters of others stay valid.
"""

import asyncio
import contextlib
import ctypes
import re
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Final, cast

from services.node_agent.peers import peer_filter
from services.node_agent.peers.peer_messages import DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN

ANY_PORT: Final = 0
# Linux's number; Python has no name for it.
SO_ATTACH_FILTER: Final = 26
# Room for the answers of many nodes at once; the kernel gives at most net.core.rmem_max.
BUFFER_BYTES: Final = 1 << 20


class UdpChannel(asyncio.DatagramProtocol):
    """The UDP channel; made by `open_channel`."""

    def __init__(self) -> None:
        self.address = ""
        self.hear: Callable[[str, bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)
        host, port = transport.get_extra_info("sockname")[:2]
        self.address = f"{host}:{port}"
        self.socket = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        self.narrow(None)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self.hear is not None:
            self.hear(f"{addr[0]}:{addr[1]}", data)

    def error_received(self, exc: Exception) -> None:
        """Ignore errors: an absent peer does not answer."""

    def listen(self, hear: Callable[[str, bytes], None]) -> None:
        self.hear = hear

    def send(self, to: str, data: bytes) -> None:
        found = place(to)
        if found is not None and not self.transport.is_closing():
            self.transport.sendto(data, found)

    def narrow(self, senders: Sequence[str] | None) -> None:
        """Set a filter in the kernel, if it accepts one.

        Otherwise `peers.py` reads and drops the other datagrams.
        """
        places = (
            None
            if senders is None
            else [found for each in senders if (found := place(each)) is not None]
        )
        program = peer_filter.program(DATAGRAM_BYTES_MIN, DATAGRAM_BYTES_MAX, places)
        if program is None or self.transport.is_closing():
            return
        held = ctypes.create_string_buffer(program)
        count = len(program) // struct.calcsize("HBBI")
        with contextlib.suppress(OSError):
            self.socket.setsockopt(
                socket.SOL_SOCKET,
                SO_ATTACH_FILTER,
                struct.pack("HL", count, ctypes.addressof(held)),
            )

    def close(self) -> None:
        self.transport.close()


async def open_channel(host: str, last_address: str) -> UdpChannel:
    """Open a channel on `host`, at the port of `last_address` if that is free.

    Raises OSError if `host` is not an address of this machine.
    """
    last = place(last_address)
    try:
        return await _open(host, last[1] if last is not None else ANY_PORT)
    except OSError:
        return await _open(host, ANY_PORT)


async def _open(host: str, port: int) -> UdpChannel:
    _, channel = await asyncio.get_running_loop().create_datagram_endpoint(
        UdpChannel, local_addr=(host, port)
    )
    return channel


def place(address: str) -> tuple[str, int] | None:
    """Return (ip, port) of "ip:port"; None if it is not valid."""
    host, _, port = address.rpartition(":")
    is_port = re.fullmatch("[0-9]{1,5}", port) and 0 < int(port) < 1 << 16
    return (host, int(port)) if host and is_port else None
