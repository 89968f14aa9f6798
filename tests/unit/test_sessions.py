"""Tokens of sessions and links: only the key that sealed one opens it, for its own purpose, and no
record made from another outlives its limit.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.common.errors import Refused
from services.api_gateway.access import sessions
from services.api_gateway.access.sessions import (
    LINK,
    NAMES_MAX,
    NS,
    SESSION,
    MinuteBudget,
    Session,
    begun,
    cookie_of,
    is_over_tls,
    is_own_origin,
    opened,
    sealed,
    set_cookie,
)

KEY, OTHER = b"k" * 32, b"o" * 32
NONCE = b"n" * sessions.NONCE_BYTES
ADA = Session(SESSION, until_ns=7, digest="d" * 64)


def test_a_token_opens_with_the_key_that_sealed_it() -> None:
    assert opened(sealed(ADA, KEY, NONCE), KEY, SESSION) == ADA


def test_a_token_does_not_open_with_another_key_or_for_another_purpose() -> None:
    token = sealed(ADA, KEY, NONCE)
    assert opened(token, OTHER, SESSION) is None
    assert opened(token, KEY, LINK) is None


def test_a_token_shows_nothing_of_its_content() -> None:
    assert "d" * 8 not in sealed(ADA, KEY, NONCE)


@pytest.mark.parametrize(
    "token", ["", "mss_", "mss_x", "mss_\u00e9", "mss_" + "A" * 80, "mss_" + "A" * 2_000, "msk_x"]
)
def test_other_text_is_no_session(token: str) -> None:
    assert opened(token, KEY, SESSION) is None


def test_a_record_that_is_too_long_for_a_cookie_is_refused() -> None:
    def record(size: int) -> Session:
        return Session(SESSION, until_ns=7, more={"code": "c" * size})

    assert opened(sealed(record(2_000), KEY, NONCE), KEY, SESSION) == record(2_000)
    with pytest.raises(Refused, match=f"more than {sessions.TOKEN_CHARS_MAX}"):
        sealed(record(sessions.TOKEN_CHARS_MAX), KEY, NONCE)


@given(place=st.integers(4, 120), bit=st.integers(0, 6))
def test_a_changed_token_is_no_session(place: int, bit: int) -> None:
    token = sealed(ADA, KEY, NONCE)
    at = place % (len(token) - 1)  # the last character may have unused bits
    changed = token[:at] + chr(ord(token[at]) ^ (1 << bit)) + token[at + 1 :]
    assert opened(changed, KEY, SESSION) is None


def test_sealed_bytes_that_are_no_session_are_not_accepted() -> None:
    from base64 import urlsafe_b64encode

    from nacl.secret import SecretBox

    box = bytes(SecretBox(KEY).encrypt(b"\xc1", NONCE))
    assert opened("mss_" + urlsafe_b64encode(box).decode().rstrip("="), KEY, SESSION) is None


def test_a_session_of_a_session_does_not_outlive_it() -> None:
    first = begun(Session("", 0, digest="d"), SESSION, now_ns=0, for_s=10)
    assert (first.until_ns, first.limit_ns) == (10 * NS, 10 * NS)
    link = begun(first, LINK, now_ns=5 * NS, for_s=2, once="x")
    assert (link.until_ns, link.limit_ns, link.once) == (7 * NS, 10 * NS, "x")
    second = begun(link, SESSION, now_ns=6 * NS, for_s=10)
    assert (second.until_ns, second.once) == (10 * NS, "")


def test_a_session_does_not_outlive_its_key() -> None:
    source = Session("", until_ns=3 * NS, limit_ns=3 * NS, digest="d")
    assert begun(source, SESSION, now_ns=0, for_s=10).until_ns == 3 * NS


@pytest.mark.parametrize(
    ("cookies", "token"),
    [
        ("", ""),
        ("a=b", ""),
        ("muster_session=x", "x"),
        ("a=b; muster_session=x; c=d", "x"),
        ("muster_session=x; muster_session=y", ""),
        ("xmuster_session=x", ""),
    ],
)
def test_one_cookie_of_the_name_is_the_session(cookies: str, token: str) -> None:
    assert cookie_of(cookies, over_tls=False) == token


@pytest.mark.parametrize(
    ("cookies", "over_tls", "token"),
    [
        ("__Host-muster_session=x", True, "x"),
        ("__Host-muster_session=x", False, "x"),
        ("muster_session=planted", True, ""),
        ("muster_session=planted; __Host-muster_session=x", True, "x"),
        ("__Host-muster_session=x; muster_session=planted", False, "x"),
        ("__Host-muster_session=x; __Host-muster_session=y", True, ""),
        ("__Host-muster_session=x; __Host-muster_session=y; muster_session=z", False, ""),
        ("__host-muster_session=x", True, ""),
    ],
)
def test_over_tls_only_a_cookie_of_the_host_itself_is_the_session(
    cookies: str, over_tls: bool, token: str
) -> None:
    assert cookie_of(cookies, over_tls) == token


def test_a_cookie_is_hidden_from_scripts_and_from_other_sites() -> None:
    text = set_cookie("x", 9, secure=False, strict=True)
    assert text == "muster_session=x; Path=/; Max-Age=9; HttpOnly; SameSite=Strict"
    assert "SameSite=Lax" in set_cookie("x", 9, secure=False, strict=False, name="a")


def test_over_tls_no_other_host_can_set_the_cookie() -> None:
    """The prefix asks browsers for Secure, Path=/ and no Domain."""
    text = set_cookie("x", 9, secure=True, strict=True)
    assert text == "__Host-muster_session=x; Path=/; Max-Age=9; HttpOnly; SameSite=Strict; Secure"


@pytest.mark.parametrize(
    ("scheme", "host", "url", "found"),
    [
        ("https", "gw", "", True),
        ("wss", "gw", "", True),
        ("http", "gw", "", False),
        ("ws", "gw", "http://gw", False),
        ("http", "gw", "https://gw", True),
        ("http", "GW:443", "https://gw/path", True),
        ("http", "gw", "https://GW:443/", True),
        ("http", "gw:8080", "https://gw", False),
        ("http", "localhost:8080", "https://gw", False),
        ("http", "", "https://", False),
    ],
)
def test_a_request_came_over_tls_to_the_gateway_or_to_a_proxy_at_its_address(
    scheme: str, host: str, url: str, found: bool
) -> None:
    assert is_over_tls(scheme, host, url) is found


@pytest.mark.parametrize(
    ("origin", "host", "scheme", "own"),
    [
        ("http://gw:8080", "gw:8080", "http", True),
        ("HTTP://GW:8080", "gw:8080", "http", False),
        ("http://GW:8080", "gw:8080", "http", True),
        ("http://gw:8080", "gw:8080", "ws", True),
        ("https://gw", "gw", "http", True),
        ("https://gw", "gw", "https", True),
        ("http://gw", "gw", "https", False),
        ("http://gw", "gw", "wss", False),
        ("http://gw:8081", "gw:8080", "http", False),
        ("http://evil", "gw", "http", False),
        ("http://gw.evil", "gw", "http", False),
        ("http://gw@evil", "gw", "http", False),
        ("null", "gw", "http", False),
        ("", "gw", "http", False),
        ("http://", "", "http", False),
        ("ftp://gw", "gw", "http", False),
    ],
)
def test_only_the_host_itself_is_the_own_origin(
    origin: str, host: str, scheme: str, own: bool
) -> None:
    assert is_own_origin(origin, host, scheme) is own


def test_a_name_has_a_number_of_uses_in_a_minute() -> None:
    budget = MinuteBudget(3)
    assert [budget.take("a", 0) for _ in range(4)] == [True] * 3 + [False]
    assert budget.take("b", 0)
    assert budget.take("a", 60 * NS)


def test_the_names_of_a_minute_are_bounded() -> None:
    budget = MinuteBudget(2)
    assert all(budget.take(str(number), 0) for number in range(NAMES_MAX))
    assert not budget.take("one more", 0)
    assert budget.take("7", 0)
