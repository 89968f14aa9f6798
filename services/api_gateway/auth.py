"""API keys: which bearer keys are accepted. The file holds SHA-256 hashes, never keys.

One key a line: 64 hex digits, then optionally a space and a name for people; `#` begins a comment. The file is read again when it changes,
so that a key is added or withdrawn without a restart. Every comparison takes the same time, whatever matches.
"""

import hashlib
import hmac
import re
from pathlib import Path
from typing import Final

from libs.common.errors import Refused

KEYS_MAX: Final = 10_000
_HASH: Final = re.compile(r"^[0-9a-f]{64}$")


def hash_key(key: str) -> str:
    """What stands in the file for a key."""
    return hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """The accepted keys. An empty path accepts none."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.stamp: tuple[int, int] = (0, 0)
        self.hashes: dict[str, str] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the file again if it changed. Raises Refused when it cannot be read or a line is no hash."""
        if not self.path:
            return
        try:
            status = Path(self.path).stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self.stamp:
                self.hashes = parse(Path(self.path).read_text())
                self.stamp = stamp
        except (OSError, UnicodeDecodeError) as error:
            raise Refused(f"the API key file {self.path} cannot be read ({error}): check MUSTER_API_KEYS_FILE") from error

    def name_of(self, key: str) -> str | None:
        """The name of an accepted key, None for any other."""
        given = hash_key(key)
        found = None
        for known, name in self.hashes.items():
            if hmac.compare_digest(known, given):
                found = name
        return found


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
