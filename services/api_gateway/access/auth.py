"""API keys: which bearer keys are accepted, and who shows them.

No key is kept anywhere, only SHA-256 hashes.

Two sources. The file of the host (MUSTER_API_KEYS_FILE), one key a line: 64 hex digits, then
optionally a space and a name for people; `#` begins a comment; it is read again when it changes,
and whoever can write it is an administrator. And the fold: keys made by `POST /v1/keys`. A key is
found by its hash, so that a request costs the same with one key as with thousands; the hash that
was found is compared in constant time.
"""

import hashlib
import hmac
import re
import secrets
from base64 import b32encode
from os import urandom
from pathlib import Path
from typing import Final, NamedTuple

from libs.common.errors import Refused
from libs.common.state.cluster import Cluster
from services.api_gateway.access.roles import ADMIN
from services.api_gateway.access.roles import Principal as Principal

KEYS_MAX: Final = 10_000
PREFIX: Final = "msk_"
SECRET_BYTES: Final = 32
_NOT_IN_A_USER: Final = re.compile(r"[^A-Za-z0-9@._-]")
_HASH: Final = re.compile(r"[0-9a-f]{64}")


class Accepted(NamedTuple):
    """A key by its hash; `until_ns` 0 = for ever."""

    digest: str
    principal: Principal
    until_ns: int = 0


def hash_key(key: str) -> str:
    """What is kept of a key. (It is random, so a slow hash would protect nothing.)"""
    return hashlib.sha256(key.encode()).hexdigest()


def new_key_id() -> str:
    return b32encode(urandom(7)).decode().lower()[:10]


def new_key(key_id: str) -> str:
    """A key's text: what it is, its public part, its secret."""
    return f"{PREFIX}{key_id}_{secrets.token_urlsafe(SECRET_BYTES)}"


class Keys:
    """The accepted keys. An empty path accepts none of the host's."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.stamp: tuple[int, int] = (0, 0)
        self.of_host: dict[str, Accepted] = {}
        self.of_fold: dict[str, Accepted] = {}
        self._cluster: Cluster | None = None
        self._seq = -1
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if it changed.

        Raises Refused when it cannot be read or a line is no hash.
        """
        if not self.path:
            return
        try:
            status = Path(self.path).stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self.stamp:
                names = parse(Path(self.path).read_text())
                self.of_host = {
                    digest: Accepted(digest, _host_key(digest, name))
                    for digest, name in names.items()
                }
                self.stamp = stamp
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(
                f"the API key file {self.path} cannot be read ({error}): check MUSTER_API_KEYS_FILE"
            ) from error

    def principal(self, key: str, cluster: Cluster, now_ns: int) -> tuple[Principal | None, str]:
        """Whose key it is; None for any that is not accepted, with why."""
        if cluster.keys_seq != self._seq or cluster is not self._cluster:
            self._index(cluster)
        given = hash_key(key)
        found = self.of_host.get(given) or self.of_fold.get(given)
        if found is None or not hmac.compare_digest(found.digest, given):
            return None, "the key is not known" if key else "no key"
        if found.until_ns and now_ns >= found.until_ns:
            return None, f"key {found.principal.key_id} has expired"
        return found.principal, ""

    def _index(self, cluster: Cluster) -> None:
        found: dict[str, Accepted] = {}
        for key in cluster.keys.values():
            principal = Principal(key.key_id, key.tenant, key.user, key.role)
            if key.old_until_ns:
                until_ns = min(key.old_until_ns, key.expires_ns or key.old_until_ns)
                found[key.old_hash] = Accepted(key.old_hash, principal, until_ns)
            found[key.secret_hash] = Accepted(key.secret_hash, principal, key.expires_ns)
        self.of_fold, self._cluster, self._seq = found, cluster, cluster.keys_seq


def _host_key(digest: str, name: str) -> Principal:
    """Whoever can write the file is an administrator."""
    return Principal(
        f"host-{digest[:8]}",
        "default",
        _NOT_IN_A_USER.sub("-", name).lstrip("-.@")[:128] or "host",
        ADMIN,
    )


def parse(text: str) -> dict[str, str]:
    """Hash -> name, from the file's text. Raises Refused naming the line."""
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
