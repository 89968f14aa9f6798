"""The fingerprint of the build of this process. Only hashes of one build are compared.

Another build may fold the same log to another state: it knows another kind of fact, has another
field or bound, or its fold or its hash was corrected. So the fingerprint is a digest of all sources
from which a state follows. Tests: tests/unit/test_agreement_build.py.
"""

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

DIGEST_BYTES: Final = 16
# `libs/common`, which holds the facts, the folds, the state and the hash.
SOURCES: Final = Path(__file__).parents[1]


@cache
def fingerprint() -> str:
    """Return the fingerprint as of the first call: the sources may be replaced later."""
    return digest_of(SOURCES)


def digest_of(folder: Path) -> str:
    """Return a digest of the names and the contents of all Python files below a folder."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for path in sorted(folder.rglob("*.py")):
        data = path.read_bytes()
        found.update(f"{path.relative_to(folder).as_posix()} {len(data)}\n".encode())
        found.update(data)
    return found.hexdigest()
