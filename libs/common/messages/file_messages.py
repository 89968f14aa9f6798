"""Requests of a gateway for the files of a job, and the agent's answers, in bounded parts.

Pure. Each request is complete in itself, so the agent keeps nothing open between two of them.
"""

from typing import Final

import msgspec

from libs.common.model import JobId

# Bytes of a file, and names of a folder, in one answer.
PART_BYTES: Final = 256 << 10
PART_NAMES: Final = 1_000

FILE: Final = "file"
FOLDER: Final = "folder"
LINK: Final = "link"

# Faults: why there is no content.
MISSING: Final = "missing"
PRUNED: Final = "pruned"
OUTSIDE: Final = "outside"
UNREADABLE: Final = "unreadable"
# Faults of links and copies between nodes: a bound is reached; the target cannot be written; the
# other node is away or breaks the rules.
BUSY: Final = "busy"
UNWRITABLE: Final = "unwritable"
BROKEN: Final = "broken"


class FileAsk(msgspec.Struct, frozen=True):
    """gateway -> agent: request a file's bytes from `offset` on, or a folder's names after `after`.

    `path` is relative to the job's working directory. Names are bytes, because a job may use names
    that are not UTF-8.
    """

    job_id: JobId
    attempt: int
    path: bytes
    offset: int = 0
    after: bytes = b""


class Named(msgspec.Struct, frozen=True, array_like=True):
    """One name in a folder. `target` is the target of a link."""

    name: bytes
    kind: str
    target: bytes = b""


class FilePart(msgspec.Struct, frozen=True):
    """agent -> gateway: a part of a file or a folder.

    `identity` differs if another file took the name meanwhile. `more`: names follow after `last`.
    `fault` is one of the words above, `text` is its explanation.
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
