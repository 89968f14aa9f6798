"""Check that a backup holds the uploads that its commits need, although some are removed meanwhile.

No commit says that an upload was removed, so the entries of the bucket are compared with the state
at the backup's sequence. Tests: tests/integration/test_backup_uploads.py.
"""

import json
from typing import Final, NamedTuple

from libs.common import fold, reading, subjects
from libs.common.state.cluster import Cluster
from libs.common.state.needed_uploads import needed_uploads
from libs.common.transport import archive
from libs.common.transport.bus import Bus
from libs.common.transport.copies_nats import StreamCopies
from libs.common.transport.log import Log
from libs.common.transport.upload_index import upload_of

UPLOADS: Final = f"OBJ_{subjects.UPLOAD_BUCKET}"
# The entries of archives, each behind all pieces of its archive.
ENTRIES: Final = f"$O.{subjects.UPLOAD_BUCKET}.M.>"
# Above every sequence of a stream.
NO_BOUND: Final = 1 << 63


class Mark(NamedTuple):
    """The bucket at one time: when it was created, how many messages were ever removed from it, and
    the sequence of its last message. Without a bucket all are empty.
    """

    created: str = ""
    removals: int = 0
    last: int = 0


class UploadCheck:
    """The check of one backup. It folds the log once at most, and only if an upload was removed."""

    def __init__(self, log: Log, bus: Bus, copies: StreamCopies) -> None:
        self.log = log
        self.bus = bus
        self.copies = copies
        self.cluster = Cluster()

    async def mark(self) -> Mark:
        state = await self.copies.state(UPLOADS)
        return Mark(state.created, state.removals, state.last) if state is not None else Mark()

    async def lacks(self, before: Mark, after: Mark, read_to: int, seq: int) -> bool:
        """Return whether an upload that the commits up to `seq` need may be missing in a backup.

        `before` is from before `seq` was taken, `after` from after the bucket was read, up to
        message `read_to`. An upload that was missing before is not looked for, because no later
        read has it.
        """
        if (after.created, after.removals) == (before.created, before.removals):
            return False
        if before.created and after.created != before.created:
            return True
        lost = await self._lost(before.last, read_to)
        if not lost:
            return False
        await self._fold(seq)
        needed = needed_uploads(self.cluster)
        return any(upload in needed for upload in lost)

    async def _lost(self, after: int, read_to: int) -> list[tuple[str, str]]:
        """Return the uploads that were removed or stored since message `after`, unless the backup
        holds the newest entry.

        An upload that was stored again after the read may have been missing at the read.
        """
        found = []
        async for entry in self.copies.messages(UPLOADS, after, NO_BOUND, ENTRIES):
            info = json.loads(entry.data)
            if info.get("deleted") or entry.seq > read_to:
                upload = upload_of(info)
                found.append((upload.tenant, upload.sha256))
        return found

    async def _fold(self, seq: int) -> None:
        """Fold the log up to this sequence, which never is before the one of the last call."""
        if self.cluster.seq >= seq:
            return
        async for batch in archive.whole(self.log, self.bus, self.cluster.seq, seq):
            for entry in batch:
                if entry.seq > seq:
                    return
                commit = reading.read(self.cluster.writers, entry.subject, entry.data)
                fold.apply_entry(self.cluster, entry.seq, entry.subject, commit)
