"""The contents of the bucket of uploads, as far as one gateway has read them.

The bucket's stream keeps the newest entry of each archive, so a reader that continues after
the last sequence that it read misses nothing. Tests: tests/integration/test_upload_store.py.
"""

from collections.abc import Mapping
from typing import Any

from libs.common.transport.uploads import Upload


class UploadIndex:
    """The archives by their name in the bucket. `mark` is the sequence of the last entry read."""

    def __init__(self, created: str) -> None:
        self.created = created
        self.mark = 0
        self.uploads: dict[str, Upload] = {}

    def note(self, seq: int, info: Mapping[str, Any]) -> None:
        """Note one entry: an archive that was stored, or removed."""
        name = str(info["name"])
        self.mark = seq
        if info.get("deleted"):
            self.uploads.pop(name, None)
        else:
            self.uploads[name] = upload_of(info)


def upload_of(info: Mapping[str, Any]) -> Upload:
    """Return the upload that an entry of the bucket describes."""
    tenant, _, sha256 = str(info["name"]).partition(".")
    return Upload(tenant, sha256, int(info.get("size") or 0), str(info.get("mtime") or ""))
