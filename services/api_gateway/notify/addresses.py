"""Decides which addresses of the network a destination may have.

Pure. By default only addresses of the public internet: not this machine, not the networks of the
site, not the metadata services of clouds. An operator allows networks with MUSTER_NOTIFY_NETWORKS.
The check is made on addresses, after the name was resolved, and the connection goes to exactly the
checked address. Tests: tests/unit/test_notify_addresses.py.
"""

import ipaddress
import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from libs.common.errors import Refused

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

URL_CHARS_MAX: Final = 2_048
PORT_MAX: Final = 65_535
# Characters between two dots of a host's name.
LABEL_MAX: Final = 63
NAME: Final = re.compile(r"[a-z0-9._-]+")
# The last part of a host that is a number makes the whole host an IPv4 address.
NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
MAIL: Final = re.compile(r"[A-Za-z0-9.!#$%&'*+/=?^_{|}~-]{1,64}@[A-Za-z0-9.-]{1,253}")
# Ranges of IPv6 that carry an IPv4 address behind which a translator may reach any network.
TRANSLATED: Final = tuple(
    ipaddress.ip_network(text)
    for text in ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
)


class Target(NamedTuple):
    """The parts of a destination's URL that are checked."""

    scheme: str
    host: str
    port: int


def networks(text: str) -> tuple[Network, ...]:
    """Return the networks of a setting, separated by commas. Raises Refused."""
    try:
        return tuple(ipaddress.ip_network(each.strip()) for each in text.split(",") if each.strip())
    except ValueError as error:
        raise Refused(
            f"notify_networks: {error}: give networks such as 10.1.0.0/16, separated by commas"
        ) from error


def is_allowed(address: str, allowed: tuple[Network, ...]) -> bool:
    """Return whether a notification may be sent to this address."""
    found = _plain(address)
    return found is not None and (is_listed(address, allowed) or _is_public(found))


def is_listed(address: str, allowed: tuple[Network, ...]) -> bool:
    """Return whether an operator has allowed the network of this address."""
    found = _plain(address)
    return found is not None and any(
        found.version == network.version and found in network for network in allowed
    )


def _plain(address: str) -> Address | None:
    """Return the address, as IPv4 if IPv6 only wraps one; None if it is no address."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped if mapped is not None else found


def _is_public(address: Address) -> bool:
    translated = isinstance(address, ipaddress.IPv6Address) and any(
        address in network for network in TRANSLATED
    )
    site_local = isinstance(address, ipaddress.IPv6Address) and address.is_site_local
    return address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or address.is_private
        or translated
        or site_local
    )


def target_of(url: str) -> Target:
    """Return where a URL points to. Raises Refused, without quoting what may be a secret."""
    if len(url) > URL_CHARS_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise Refused(f"url: it is not valid: use at most {URL_CHARS_MAX} ASCII characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Refused("url: it is not valid: use https://HOST/PATH") from None
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise Refused("url: it is not valid: use https://HOST/PATH")
    _check_host(parts.hostname)
    if parts.username is not None or parts.password is not None:
        raise Refused("url: it holds a user or a password: webhooks are signed instead")
    if parts.fragment:
        raise Refused("url: it holds a fragment (#), which no server receives: leave it out")
    return Target(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80))


def _check_host(host: str) -> None:
    """Raise Refused for a host that is neither a name nor an address in its usual form.

    Libraries of the system take other forms, such as 127.1 and 0x7f000001, for addresses, and those
    would be resolved where no check is.
    """
    labels = host.removesuffix(".").split(".")
    if ":" in host or NUMBER.fullmatch(labels[-1]):
        if not is_literal(host):
            raise Refused(
                "url: its host is no valid address: use the form 192.0.2.1 or [2001:db8::1]"
            )
    elif not NAME.fullmatch(host) or not all(0 < len(label) <= LABEL_MAX for label in labels):
        raise Refused("url: its host is no valid name: use https://HOST/PATH")


def is_literal(host: str) -> bool:
    """Return whether the host is an address, so that no name is looked up."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def shown(url: str) -> str:
    """Return the part of a URL that is shown and logged: no path, because it may hold a key."""
    target = target_of(url)
    host = f"[{target.host}]" if ":" in target.host else target.host
    usual = (target.scheme, target.port) in (("https", 443), ("http", 80))
    return f"{target.scheme}://{host}" + ("" if usual else f":{target.port}")


def mail_address(text: str) -> str:
    """Return a mail address. Raises Refused."""
    if MAIL.fullmatch(text) is None or ".." in text:
        raise Refused(f"mail: {text[:64]!r} is not an address: use name@example.org")
    return text


def domain_is_allowed(address: str, domains: str) -> bool:
    """Return whether the operator allows mails to this address's domain (`*`: all)."""
    domain = address.rpartition("@")[2].lower()
    allowed = [each.strip().lower() for each in domains.split(",") if each.strip()]
    return "*" in allowed or domain in allowed
