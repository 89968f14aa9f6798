"""The peers' real channel: one UDP socket on the node's own address. Its twin is the simulation's.

The port of an agent's last life is tried first, so that the roster that others keep still finds it.
"""

import asyncio
from collections.abc import Callable
from typing import Final, cast

ANY_PORT: Final = 0


class UdpChannel(asyncio.DatagramProtocol):
    """See `peers.Channel`; made by `open_channel`."""

    def __init__(self) -> None:
        self.address = ""
        self.hear: Callable[[str, bytes], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.DatagramTransport, transport)
        host, port = transport.get_extra_info("sockname")[:2]
        self.address = f"{host}:{port}"

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if self.hear is not None:
            self.hear(f"{addr[0]}:{addr[1]}", data)

    def error_received(self, exc: Exception) -> None:
        """A peer is not there; its answer does not come."""

    def listen(self, hear: Callable[[str, bytes], None]) -> None:
        self.hear = hear

    def send(self, to: str, data: bytes) -> None:
        found = place(to)
        if found is not None and not self.transport.is_closing():
            self.transport.sendto(data, found)

    def close(self) -> None:
        self.transport.close()


async def open_channel(host: str, last_address: str) -> UdpChannel:
    """On `host`, at the port of `last_address` if that is free. Raises OSError when `host` is not an address of this machine."""
    last = place(last_address)
    try:
        return await _open(host, last[1] if last is not None else ANY_PORT)
    except OSError:
        return await _open(host, ANY_PORT)


async def _open(host: str, port: int) -> UdpChannel:
    _, channel = await asyncio.get_running_loop().create_datagram_endpoint(UdpChannel, local_addr=(host, port))
    return channel


def place(address: str) -> tuple[str, int] | None:
    """(ip, port) of "ip:port"; None for what is none."""
    host, _, port = address.rpartition(":")
    return (host, int(port)) if host and port.isdecimal() and 0 < int(port) < 1 << 16 else None
