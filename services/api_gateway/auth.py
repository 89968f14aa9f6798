"""API keys: which bearer keys are accepted. The file holds SHA-256 hashes, never keys.

One key a line: 64 hex digits, then optionally a space and a name for people; `#` begins a comment. The file is read again when it
changes, so that a key is added or withdrawn without a restart. A key is found by its hash, so that a request costs the same with one key
as with thousands; the hash that was found is compared in constant time.
"""

import hashlib
import hmac
import re
from pathlib import Path
from typing import Final

import msgspec

from libs.common.errors import Refused

KEYS_MAX: Final = 10_000
_HASH: Final = re.compile(r"^[0-9a-f]{64}$")


class Principal(msgspec.Struct, frozen=True):
    """On whose word a request acts. `key_id` is public."""

    key_id: str
    tenant: str
    user: str
    role: str


def hash_key(key: str) -> str:
    """What stands in the file for a key."""
    return hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """The accepted keys. An empty path accepts none."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.stamp: tuple[int, int] = (0, 0)
        self.principals: dict[str, tuple[str, Principal]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if it changed. Raises Refused when it cannot be read or a line is no hash."""
        if not self.path:
            return
        try:
            status = Path(self.path).stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self.stamp:
                names = parse(Path(self.path).read_text())
                self.principals = {digest: (digest, _host_key(digest, name)) for digest, name in names.items()}
                self.stamp = stamp
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(f"the API key file {self.path} cannot be read ({error}): check MUSTER_API_KEYS_FILE") from error

    def principal(self, key: str) -> Principal | None:
        """Whose key it is, None for any that is not accepted."""
        given = hash_key(key)
        found = self.principals.get(given)
        return found[1] if found is not None and hmac.compare_digest(found[0], given) else None


def _host_key(digest: str, name: str) -> Principal:
    """Whoever can write the file is an administrator."""
    return Principal(f"host-{digest[:8]}", "default", name or "host", "admin")


def parse(text: str) -> dict[str, str]:
    """Hash -> name, from the file's text. Raises Refused naming the line."""
    hashes: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.partition("#")[0].strip()
        if not content:
            continue
        digest, _, name = content.partition(" ")
        if not _HASH.match(digest.lower()):
            raise Refused(f"line {number} of the API key file does not begin with 64 hex digits: write the key's SHA-256")
        hashes[digest.lower()] = name.strip()
    if len(hashes) > KEYS_MAX:
        raise Refused(f"the API key file holds {len(hashes)} keys: at most {KEYS_MAX} are accepted")
    return hashes
