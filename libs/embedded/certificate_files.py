"""Paths of the certificates and keys of a cluster. `certificates.py` makes them.

A start without other machines needs the names alone, and not the library for certificates.
"""

from pathlib import Path
from typing import Final

# File names in the keys directory of an embedded cluster.
AUTHORITY: Final = "ca"
SERVER: Final = "server"
# The authorities that this machine's processes trust, the present one last.
TRUSTED: Final = "trusted"


def certificate_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.pem"


def key_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.key"
