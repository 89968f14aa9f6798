"""API keys and sessions: the accepted bearer keys and the principal of each.

The gateway keeps no key, only its SHA-256 hash. Keys come from two sources:
- The host's key file (MUSTER_API_KEYS_FILE) has one key a line: 64 hex digits, then optionally a
  space and a name; `#` begins a comment. The gateway reads it again when it changes. Everyone who
  can write it is an administrator.
- The fold has the keys that `POST /v1/keys` created.
A session (`sessions.py`) stands for a key of these, or for a user of the identity provider.

A key is looked up by its hash, so a request costs the same with one key as with thousands. The
look-up is not constant-time: timing may at most reveal leading bits of a stored hash, and a 256-bit
random key cannot be computed from its hash.
"""

import hashlib
import re
import secrets
from base64 import b32encode
from collections.abc import Callable
from os import urandom
from pathlib import Path
from typing import Final, NamedTuple

from libs.common.errors import Refused
from libs.common.state.cluster import Cluster
from services.api_gateway.access import sessions
from services.api_gateway.access.roles import ADMIN
from services.api_gateway.access.roles import Principal as Principal
from services.api_gateway.access.sessions import Session

KEYS_MAX: Final = 10_000
PREFIX: Final = "msk_"
SECRET_BYTES: Final = 32
_NOT_IN_A_USER: Final = re.compile(r"[^A-Za-z0-9@._-]")
_HASH: Final = re.compile(r"[0-9a-f]{64}")


class Accepted(NamedTuple):
    """An accepted key, filed under its hash. `until_ns` is 0 for a key that never expires."""

    principal: Principal
    until_ns: int = 0


def hash_key(key: str) -> str:
    """Return the hash under which a key is kept. Keys are random, so a slow hash is not needed."""
    return hashlib.sha256(key.encode()).hexdigest()


def new_key_id() -> str:
    return b32encode(urandom(7)).decode().lower()[:10]


def is_recorded(key_id: str) -> bool:
    """Return whether the id is of a key in the log. The ids of the key file's keys and of sign-ons
    have a dash.
    """
    return bool(key_id) and "-" not in key_id


def new_key(key_id: str) -> str:
    """Return the text of a new key: prefix, public key id, random secret."""
    return f"{PREFIX}{key_id}_{secrets.token_urlsafe(SECRET_BYTES)}"


class Keys:
    """The accepted keys. With an empty path there is no key file.

    `session_key` returns the key that seals sessions, or raises Refused if there is none.
    `of_group` returns the principal of a session of the identity provider, or why there is none.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.session_key: Callable[[], bytes] = _no_sessions
        self.of_group: Callable[[Session, Cluster], Principal | str] = _no_groups
        self.stamp: tuple[int, int] = (0, 0)
        self.of_host: dict[str, Accepted] = {}
        self.of_fold: dict[str, Accepted] = {}
        self._cluster: Cluster | None = None
        self._seq = -1
        self.refresh()

    def refresh(self) -> None:
        """Read the key file again if it changed.

        Raises Refused if it cannot be read or a line does not begin with a hash.
        """
        if not self.path:
            return
        try:
            status = Path(self.path).stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self.stamp:
                names = parse(Path(self.path).read_text())
                self.of_host = {
                    digest: Accepted(_host_principal(digest, name))
                    for digest, name in names.items()
                }
                self.stamp = stamp
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(
                f"the API key file {self.path} cannot be read ({error}): check MUSTER_API_KEYS_FILE"
            ) from error

    def principal(self, key: str, cluster: Cluster, now_ns: int) -> tuple[Principal | None, str]:
        """Return the principal of a key or session and "".

        Returns None and the reason if it is not accepted.
        """
        if cluster.keys_seq != self._seq or cluster is not self._cluster:
            self._index(cluster)
        digest = hash_key(key)
        accepted = self.of_host.get(digest) or self.of_fold.get(digest)
        if accepted is None:
            if key.startswith(sessions.PREFIX):
                return self._of_session(key, cluster, now_ns)
            return None, "the key is not known" if key else "no key"
        if accepted.until_ns and now_ns >= accepted.until_ns:
            return None, f"key {accepted.principal.key_id} has expired"
        return accepted.principal, ""

    def credential(self, key: str, cluster: Cluster, now_ns: int) -> Session | None:
        """Return what a session of this key, or of this session, is made from."""
        if self.principal(key, cluster, now_ns)[0] is None:
            return None
        if (session := self.opened(key, sessions.SESSION)) is not None:
            return session
        digest = hash_key(key)
        accepted = self.of_host.get(digest) or self.of_fold[digest]
        return Session(
            purpose="", until_ns=accepted.until_ns, limit_ns=accepted.until_ns, digest=digest
        )

    def opened(self, token: str, purpose: str) -> Session | None:
        """Return the content of a token; None if it is not one of this cluster's."""
        if not token.startswith(sessions.PREFIX):
            return None
        try:
            return sessions.opened(token, self.session_key(), purpose)
        except Refused:
            return None

    def accepts(self, session: Session, cluster: Cluster, now_ns: int) -> Principal | str:
        """Return the principal that a session or link stands for, or why it is not accepted."""
        if session.until_ns and now_ns >= session.until_ns:
            return "the session has expired"
        if not session.digest:
            return self.of_group(session, cluster)
        accepted = self.of_host.get(session.digest) or self.of_fold.get(session.digest)
        if accepted is None or (accepted.until_ns and now_ns >= accepted.until_ns):
            return "the key of the session is not accepted any more"
        return accepted.principal

    def _of_session(
        self, token: str, cluster: Cluster, now_ns: int
    ) -> tuple[Principal | None, str]:
        session = self.opened(token, sessions.SESSION)
        if session is None:
            return None, "the session is not known"
        found = self.accepts(session, cluster, now_ns)
        return (None, found) if isinstance(found, str) else (found, "")

    def _index(self, cluster: Cluster) -> None:
        accepted: dict[str, Accepted] = {}
        for key in cluster.keys.values():
            principal = Principal(key.key_id, key.tenant, key.user, key.role)
            if key.old_until_ns:
                until_ns = min(key.old_until_ns, key.expires_ns or key.old_until_ns)
                accepted[key.old_hash] = Accepted(principal, until_ns)
            accepted[key.secret_hash] = Accepted(principal, key.expires_ns)
        self.of_fold = accepted
        self._cluster = cluster
        self._seq = cluster.keys_seq


def bearer(authorization: str) -> str:
    """Return the key in an Authorization header; empty if it has none."""
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _no_sessions() -> bytes:
    raise Refused("this gateway has no key for sessions: set MUSTER_VAULT_KEY_FILE")


def _no_groups(session: Session, cluster: Cluster) -> Principal | str:
    return f"this gateway knows no group {session.group}"


def _host_principal(digest: str, name: str) -> Principal:
    """Return the administrator that a key of the key file stands for."""
    user = _NOT_IN_A_USER.sub("-", name).lstrip("-.@")[:128] or "host"
    return Principal(key_id=f"host-{digest[:8]}", tenant="default", user=user, role=ADMIN)


def parse(text: str) -> dict[str, str]:
    """Return the name of each hash in the file's text. Raises Refused naming the line."""
    hashes: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        digest, _, name = content.partition(" ")
        if not _HASH.fullmatch(digest.lower()):
            raise Refused(
                f"line {number} of the API key file does not begin with 64 hex digits: write "
                "the key's SHA-256"
            )
        hashes[digest.lower()] = name.strip()
    if len(hashes) > KEYS_MAX:
        raise Refused(f"the API key file holds {len(hashes)} keys: at most {KEYS_MAX} are accepted")
    return hashes
