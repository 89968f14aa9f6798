"""Sessions: what a signed-in browser or command line sends instead of a key.

Pure. A session is a token that no gateway stores: a sealed record, which every gateway with the
same vault key can open (docs/decisions/0069-sessions-are-sealed-tokens.md). A session of an API key
holds the hash of that key, and is valid only while the key is. A session of the identity provider
holds a user and the group that admitted it, and is valid only while the mapping has that group.
A one-time link is such a record too, of another purpose. Tests: tests/unit/test_sessions.py.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from typing import Final

import msgspec
from msgspec.structs import replace
from nacl.exceptions import CryptoError
from nacl.secret import SecretBox

from libs.common.errors import Refused

PREFIX: Final = "mss_"
COOKIE: Final = "muster_session"
# Browsers store a cookie with this prefix only from the host itself, over TLS, for all its paths.
HOST_PREFIX: Final = "__Host-"
TOKEN_CHARS_MAX: Final = 3_072
NONCE_BYTES: Final = SecretBox.NONCE_SIZE
# Purposes of a record. One for another purpose is not accepted.
SESSION: Final = "session"
LINK: Final = "link"
LINK_S: Final = 60
# Links that one tenant may create at one gateway in a minute.
LINKS_MAX: Final = 120
# Sign-ons at the identity provider that may begin at one address in a minute.
SIGN_ONS_MAX: Final = 60
# How often a command line may ask in a minute whether its user has entered the code.
POLLS_MAX: Final = 20
NAMES_MAX: Final = 10_000
NS: Final = 1_000_000_000


class Session(msgspec.Struct, frozen=True, array_like=True):
    """The content of a token. A session holds either `digest`, or `group`, `user` and `subject`.

    `until_ns`: the end of this token. `limit_ns`: the latest end of sessions made from it; 0 for
    none. `digest`: the hash of the API key. `group`, `user` and `subject` come from the identity
    provider. `once`: the key of a link or sign-on in the store of used ones. `more`: what a sign-on
    under way must know when it goes on.
    """

    purpose: str
    until_ns: int
    limit_ns: int = 0
    digest: str = ""
    group: str = ""
    user: str = ""
    subject: str = ""
    once: str = ""
    more: dict[str, str] = {}


class MinuteBudget:
    """The uses of each name in the present minute: at most `most` of them.

    More than NAMES_MAX names in one minute are refused.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.minute = 0
        self.used: dict[str, int] = {}

    def take(self, name: str, now_ns: int) -> bool:
        """Count one more time, or return False if the name has no more in this minute."""
        minute = now_ns // (60 * NS)
        if minute != self.minute:
            self.minute, self.used = minute, {}
        used = self.used.get(name, 0)
        if used >= self.most or (not used and len(self.used) >= NAMES_MAX):
            return False
        self.used[name] = used + 1
        return True


_decoder: Final = msgspec.msgpack.Decoder(Session)


def sealed(session: Session, key: bytes, nonce: bytes) -> str:
    """Return the token of a session. `nonce`: NONCE_BYTES random bytes.

    Raises Refused if it would be longer than TOKEN_CHARS_MAX, because browsers drop long cookies.
    """
    box = SecretBox(key).encrypt(msgspec.msgpack.encode(session), nonce)
    token = PREFIX + urlsafe_b64encode(bytes(box)).rstrip(b"=").decode()
    if len(token) > TOKEN_CHARS_MAX:
        raise Refused(
            f"the session has {len(token)} characters, more than {TOKEN_CHARS_MAX}: ask the "
            "identity provider for shorter codes and names, or sign in with an API key"
        )
    return token


def opened(token: str, key: bytes, purpose: str) -> Session | None:
    """Return the content of a token; None if no gateway with this key sealed it for `purpose`."""
    if not token.startswith(PREFIX) or len(token) > TOKEN_CHARS_MAX:
        return None
    text = token[len(PREFIX) :]
    try:
        box = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        session = _decoder.decode(SecretBox(key).decrypt(box))
    except (NotBase64, CryptoError, ValueError, msgspec.DecodeError):
        return None
    return session if session.purpose == purpose else None


def begun(source: Session, purpose: str, now_ns: int, for_s: int, once: str = "") -> Session:
    """Return a record made from `source`: valid for `for_s`, but not beyond the source's limit."""
    until_ns = now_ns + for_s * NS
    if source.limit_ns:
        until_ns = min(until_ns, source.limit_ns)
    limit_ns = source.limit_ns if purpose == LINK else until_ns
    return replace(source, purpose=purpose, until_ns=until_ns, limit_ns=limit_ns, once=once)


def cookie_of(cookies: str, over_tls: bool, name: str = COOKIE) -> str:
    """Return the value of a cookie in a Cookie header; empty without one, or if there are several.

    A page of a neighbouring domain can add a cookie, but none with HOST_PREFIX. So over TLS only
    one with the prefix is accepted, and elsewhere it goes first. None of several is trusted.
    """
    found: dict[str, list[str]] = {HOST_PREFIX + name: [], name: []}
    for part in cookies.split(";"):
        given, _, value = part.strip().partition("=")
        if given in found:
            found[given].append(value)
    values = found[HOST_PREFIX + name]
    if not values and not over_tls:
        values = found[name]
    return values[0] if len(values) == 1 else ""


def set_cookie(value: str, max_age_s: int, secure: bool, strict: bool, name: str = COOKIE) -> str:
    """Return a Set-Cookie header. An age of 0 removes the cookie.

    `secure`: the browser reaches the gateway over TLS. `strict`: no link of another site sends it.
    """
    same_site = "Strict" if strict else "Lax"
    text = f"{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite={same_site}"
    return f"{HOST_PREFIX}{text}; Secure" if secure else text


def is_over_tls(scheme: str, host: str, url: str) -> bool:
    """Return whether a request came over TLS: to the gateway, or to a proxy at the set address.

    `url` is that address, MUSTER_GATEWAY_URL.
    """
    kind, _, rest = url.partition("://")
    wanted, given = (text.lower().removesuffix(":443") for text in (rest.partition("/")[0], host))
    return scheme in ("https", "wss") or (kind.lower() == "https" and wanted == given != "")


def is_own_origin(origin: str, host: str, scheme: str) -> bool:
    """Return whether a request's Origin is the host that the request was sent to.

    A TLS proxy before the gateway may hide the scheme, so `http` here accepts both.
    """
    kind, separator, authority = origin.partition("://")
    return (
        bool(separator and host)
        and authority.lower() == host.lower()
        and (kind == "https" or (kind == "http" and scheme in ("http", "ws")))
    )
