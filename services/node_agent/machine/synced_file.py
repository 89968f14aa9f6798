"""A small file that is either as it was or as it should be, whatever the power does."""

import os
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Returns once the new content would survive a power cut.

    Closed to other users: jobs can pass the agent's folders. Raises OSError.
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
