"""What a gateway asks a node about the files of a job, and what it is told: one bounded part after
the other.

Pure. Each question stands alone, so nobody holds anything open between two of them.
"""

from typing import Final

import msgspec

from libs.common.model import JobId

# Of a file, and of the names in a folder, in one answer.
PART_BYTES: Final = 256 << 10
PART_NAMES: Final = 1_000

FILE: Final = "file"
FOLDER: Final = "folder"
LINK: Final = "link"

# Why there is nothing.
MISSING: Final = "missing"
PRUNED: Final = "pruned"
OUTSIDE: Final = "outside"
UNREADABLE: Final = "unreadable"


class FileAsk(msgspec.Struct, frozen=True):
    """gateway -> agent: of a file the bytes from `offset` on, of a folder the names behind `after`.

    `path` is seen from the job's working directory. Names are bytes here and below: nothing makes a
    job write them in UTF-8.
    """

    job_id: JobId
    attempt: int
    path: bytes
    offset: int = 0
    after: bytes = b""


class Named(msgspec.Struct, frozen=True, array_like=True):
    """One name in a folder; `target` is where a link leads."""

    name: bytes
    kind: str
    target: bytes = b""


class FilePart(msgspec.Struct, frozen=True):
    """`identity` tells a file from another one that took its name meanwhile.

    `more`: there are names behind `last`.

    `fault` is one of the words above, `text` says it in full.
    """

    kind: str = ""
    size_bytes: int = 0
    mode: int = 0
    identity: str = ""
    data: bytes = b""
    names: tuple[Named, ...] = ()
    last: bytes = b""
    more: bool = False
    fault: str = ""
    text: str = ""
