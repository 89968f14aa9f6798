"""The address of a client behind proxies: only trusted proxies tell it."""

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Refused
from services.api_gateway.http.forwarding import HOPS_MAX, TrustedProxies

PROXIES = TrustedProxies("10.0.0.0/8, 192.0.2.7,fd00::/8")


def address(peer: str, *forwarded: str) -> str:
    return PROXIES.address(peer, [each.encode() for each in forwarded])


@pytest.mark.parametrize(
    ("peer", "forwarded", "found"),
    [
        ("10.0.0.1", ("203.0.113.5",), "203.0.113.5"),
        ("10.0.0.1", ("203.0.113.5:4711",), "203.0.113.5"),
        ("10.0.0.1", ("198.51.100.1, 203.0.113.5",), "203.0.113.5"),
        ("10.0.0.1", ("198.51.100.1, 203.0.113.5, 10.0.0.9",), "203.0.113.5"),
        ("10.0.0.1", ("198.51.100.1", "203.0.113.5"), "203.0.113.5"),
        ("192.0.2.7", ("[2001:db8::5]:4711",), "2001:db8::5"),
        ("fd00::1", ("2001:db8::5",), "2001:db8::5"),
        ("::ffff:10.0.0.1", ("203.0.113.5",), "203.0.113.5"),
        ("10.0.0.1", ("10.0.0.3, 10.0.0.2",), "10.0.0.3"),
    ],
)
def test_behind_trusted_proxies_the_last_untrusted_address_is_the_client(
    peer: str, forwarded: tuple[str, ...], found: str
) -> None:
    assert address(peer, *forwarded) == found


@pytest.mark.parametrize("peer", ["203.0.113.9", "192.0.2.8", "2001:db8::1", "", "unix"])
def test_the_header_of_an_untrusted_peer_is_ignored(peer: str) -> None:
    assert address(peer, "198.51.100.1") == peer


@pytest.mark.parametrize(
    ("forwarded", "found"),
    [
        ((), "10.0.0.1"),
        (("",), "10.0.0.1"),
        (("unknown",), "10.0.0.1"),
        (("203.0.113.5, unknown",), "10.0.0.1"),
        (("203.0.113.5, unknown, 10.0.0.2",), "10.0.0.2"),
        (("\u00e9, [::, 1.2.3, ]",), "10.0.0.1"),
    ],
)
def test_an_unreadable_part_of_the_header_ends_the_search(
    forwarded: tuple[str, ...], found: str
) -> None:
    assert address("10.0.0.1", *forwarded) == found


def test_only_so_many_proxies_are_passed_over() -> None:
    header = ", ".join(["203.0.113.5", *["10.0.0.2"] * HOPS_MAX])
    assert address("10.0.0.1", header) == "10.0.0.2"


def test_without_the_setting_no_header_counts() -> None:
    assert TrustedProxies("").address("10.0.0.1", [b"203.0.113.5"]) == "10.0.0.1"


@pytest.mark.parametrize("text", ["10.0.0.1/8", "proxy.example.org", "10.0.0.0/33", "*"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="MUSTER_GATEWAY_TRUSTED_PROXIES"):
        TrustedProxies(f"192.0.2.7,{text}")


@given(given=st.lists(st.binary(max_size=60), max_size=4), client=st.ip_addresses(v=4))
def test_a_client_cannot_choose_its_address(given: list[bytes], client: object) -> None:
    """The proxy appends the address that it saw, whatever the client sent before it."""
    seen = str(client)
    found = PROXIES.address("192.0.2.7", [*given, seen.encode()])
    if not seen.startswith("10.") and seen != "192.0.2.7":
        assert found == str(ip_address(seen))


def test_the_client_of_a_request_is_replaced_only_behind_a_proxy() -> None:
    headers = [(b"x-forwarded-for", b"198.51.100.1"), (b"x-forwarded-for", b"203.0.113.5")]
    for peer, client in (
        (("10.0.0.1", 9), ("203.0.113.5", 0)),
        (("203.0.113.9", 9), ("203.0.113.9", 9)),
        (None, None),
    ):
        scope = {"client": peer, "headers": headers}
        PROXIES.note(scope)
        assert scope["client"] == client
