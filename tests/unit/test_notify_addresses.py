"""Where notifications may go."""

import pytest

from libs.common.errors import Refused
from services.api_gateway.notify import addresses
from services.api_gateway.notify.addresses import Target, is_allowed, is_listed, networks

NONE = networks("")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "0.0.0.0",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fd00::1",
        "fec0::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:7f00:1::",
        "2001:0:1::1",
        "not-an-address",
    ],
)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    assert not is_allowed(address, NONE)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:4700::1111", "::ffff:93.184.216.34"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_allowed(address, NONE)


def test_an_operator_allows_networks() -> None:
    allowed = networks("10.1.0.0/16, ::1/128,")
    assert is_allowed("10.1.2.3", allowed) and is_allowed("::1", allowed)
    assert is_allowed("::ffff:10.1.2.3", allowed)
    assert not is_allowed("10.2.0.1", allowed)
    assert is_listed("10.1.2.3", allowed) and not is_listed("93.184.216.34", allowed)
    with pytest.raises(Refused, match="notify_networks"):
        networks("10.1.0.0/99")


def test_a_url_says_where_it_goes() -> None:
    assert addresses.target_of("https://h.example/a?k=1") == Target("https", "h.example", 443)
    assert addresses.target_of("http://h.example:8080/") == Target("http", "h.example", 8080)
    assert addresses.target_of("http://h.example/").port == 80
    assert addresses.target_of("https://a_b-1.2x.example./").host == "a_b-1.2x.example."
    assert addresses.target_of("https://192.0.2.1/").host == "192.0.2.1"
    assert addresses.target_of("https://[2001:DB8::1]/").host == "2001:db8::1"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://h.example/",
        "https://",
        "https://h.example:99999/",
        "https://[::1/",
        "https://user:hunter2@h.example/",
        "https://hunter2..example/",
        "https://" + "hunter2" * 10 + ".example/",
        "https://127.1/hunter2",
        "https://2130706433/hunter2",
        "https://0x7f000001/hunter2",
        "https://0X7F.1/hunter2",
        "https://127.0.0.0x1/hunter2",
        "https://127.0.0.1./hunter2",
        "https://127.0.0.01/hunter2",
        "https://127.0.0.%31/hunter2",
        "https://127.0.0.1\\.h.example/hunter2",
        "https://h.example/#hunter2",
        "https://h.example/ hunter2",
        "https://h.example/\nhunter2",
        "https://h.example/" + "x" * 2_100,
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(Refused) as refused:
        addresses.target_of(url)
    assert "hunter2" not in str(refused.value)


def test_the_shown_part_of_a_url_has_no_path() -> None:
    assert addresses.shown("https://hooks.example/T1/SECRET?x=y") == "https://hooks.example"
    assert addresses.shown("http://[::1]:8080/SECRET") == "http://[::1]:8080"


def test_mail_addresses_and_domains() -> None:
    assert addresses.mail_address("ann@example.org") == "ann@example.org"
    for wrong in ("ann", "a@b\nBcc: c@d", "a..b@c.d", "@b", "a b@c.d"):
        with pytest.raises(Refused):
            addresses.mail_address(wrong)
    assert addresses.domain_is_allowed("ann@Example.org", "example.org")
    assert addresses.domain_is_allowed("ann@example.org", "*")
    assert not addresses.domain_is_allowed("ann@sub.example.org", "example.org")
    assert not addresses.domain_is_allowed("ann@example.org", "")
