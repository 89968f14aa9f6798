"""Small files that a power cut leaves either old or new, never torn."""

import os
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Replace a file; return once the new content survives a power cut.

    Other users cannot read it: jobs can pass the agent's folders. Raises OSError.
    """
    draft = path.with_suffix(".draft")
    with os.fdopen(
        os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
    ) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
