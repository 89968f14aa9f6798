"""A classic BPF program for the peers' UDP socket: the kernel drops what no peer can have sent,
before it takes a place in the socket's buffer.

Pure; `peers_udp.py` attaches it, which needs no privilege.

It drops datagrams that are too short or too long. Narrowed, it also drops those whose source
address and port are not given. No process of this host can send from a port that an agent's socket
has.
"""

import ipaddress
import struct
from collections.abc import Mapping, Sequence
from typing import Final

HEADER_BYTES: Final = 8
# The kernel takes no longer program; a narrowed one of more addresses is not made.
INSTRUCTIONS_MAX: Final = 4_096

_LOAD_HALF: Final = 0x28
_LOAD_WORD: Final = 0x20
_JUMP_EQUAL: Final = 0x15
_JUMP_GREATER: Final = 0x25
_JUMP_AT_LEAST: Final = 0x35
_JUMP: Final = 0x05
_RETURN: Final = 0x06
_WHOLE: Final = 0xFFFF
# Offsets in the filter of a UDP socket count from the UDP header; plus this one, from the IPv4
# header.
_NETWORK: Final = 0xFFF00000
_SOURCE_ADDRESS: Final = _NETWORK + 12
_SOURCE_PORT: Final = 0
_LENGTH: Final = 4

Instruction = tuple[int, int, int, int]


def program(
    bytes_min: int, bytes_max: int, senders: Sequence[tuple[str, int]] | None = None
) -> bytes | None:
    """Return the instructions as the kernel reads them; None if no such program can tell these
    senders apart.
    """
    found: list[Instruction] = [
        (_LOAD_HALF, 0, 0, _LENGTH),
        (_JUMP_AT_LEAST, 1, 0, HEADER_BYTES + bytes_min),
        (_RETURN, 0, 0, 0),
        (_JUMP_GREATER, 0, 1, HEADER_BYTES + bytes_max),
        (_RETURN, 0, 0, 0),
    ]
    if senders is None:
        found.append((_RETURN, 0, 0, _WHOLE))
    else:
        ports = _ports_by_address(senders)
        if ports is None:
            return None
        for address, ports_there in ports.items():
            found += _from(address, ports_there)
        found.append((_RETURN, 0, 0, 0))
    return (
        b"".join(struct.pack("HBBI", *each) for each in found)
        if len(found) <= INSTRUCTIONS_MAX
        else None
    )


def _ports_by_address(senders: Sequence[tuple[str, int]]) -> Mapping[int, list[int]] | None:
    """Return the ports by address; None if one of them is no IPv4 address."""
    found: dict[int, list[int]] = {}
    try:
        for host, port in senders:
            found.setdefault(int(ipaddress.IPv4Address(host)), []).append(port)
    except ValueError:
        return None
    return found


def _from(address: int, ports: Sequence[int]) -> list[Instruction]:
    accepts = [
        each for port in ports for each in ((_JUMP_EQUAL, 0, 1, port), (_RETURN, 0, 0, _WHOLE))
    ]
    body = [(_LOAD_HALF, 0, 0, _SOURCE_PORT), *accepts, (_RETURN, 0, 0, 0)]
    return [
        (_LOAD_WORD, 0, 0, _SOURCE_ADDRESS),
        (_JUMP_EQUAL, 1, 0, address),
        (_JUMP, 0, 0, len(body)),
        *body,
    ]
