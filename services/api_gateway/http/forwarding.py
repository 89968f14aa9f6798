"""The address of a client behind proxies.

Pure. Every client can send X-Forwarded-For, so the header counts only as far as proxies in
MUSTER_GATEWAY_TRUSTED_PROXIES wrote it. Each of them appends the address that it was asked from.
So the client is the last address in the header that is no trusted proxy. Tests:
tests/unit/test_forwarding.py, tests/attack/test_forged_forwarding.py.
"""

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, Final

from libs.common.errors import Refused

HEADER: Final = b"x-forwarded-for"
# Proxies before a gateway. Addresses that stand farther left are not read.
HOPS_MAX: Final = 16
HEADER_BYTES_MAX: Final = 4_096

Address = IPv4Address | IPv6Address


class TrustedProxies:
    """The networks whose proxies are trusted; none by default."""

    def __init__(self, networks: str) -> None:
        self.networks = tuple(
            _network(each.strip()) for each in networks.split(",") if each.strip()
        )

    def note(self, scope: Any) -> None:  # noqa: ANN401  an ASGI scope
        """Replace the `client` of a request's scope by the client behind the trusted proxies."""
        peer = scope.get("client")
        if peer and self.networks:
            address = self.address(peer[0], (v for k, v in scope["headers"] if k == HEADER))
            if address != peer[0]:
                scope["client"] = (address, 0)

    def address(self, peer: str, forwarded: Iterable[bytes]) -> str:
        """Return the client's address. `peer` sent the request, with these values of the header."""
        found = _address(peer)
        if found is None or not self._is_trusted(found):
            return peer
        hops = b",".join(forwarded)[-HEADER_BYTES_MAX:].decode("latin-1").split(",")
        for hop in reversed(hops[-HOPS_MAX:]):
            before = _address(_without_port(hop.strip()))
            if before is None:
                break
            found = before
            if not self._is_trusted(found):
                break
        return str(found)

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise Refused(
            f"MUSTER_GATEWAY_TRUSTED_PROXIES: {text!r} is not a network ({error}): give for "
            "example 10.0.0.0/8 or 192.0.2.7, several separated by commas"
        ) from error


def _address(text: str) -> Address | None:
    """Return an address; an IPv4 address in IPv6's form as IPv4. None if the text is none."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def _without_port(text: str) -> str:
    """Return the address in `10.0.0.1:4711`, `[::1]:4711`, `[::1]` or an address alone."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text
