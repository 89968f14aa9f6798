"""A small file that is either as it was or as it should be, whatever the power does."""

import os
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Returns once the new content would survive a power cut. Raises OSError."""
    draft = path.with_suffix(".draft")
    with open(draft, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.rename(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
