"""Signs the chain's head regularly, and publishes it outside the database.

It writes each head to a file in the state directory, one file a month, and to the stream
AUDIT_HEADS. A lost answer may leave a gap in the stream; the files are synced and have every head.
The notary does not sign an archive that no longer holds the last signed head, because that archive
was cut off or rewritten. It logs the error again every AGAIN_S.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NoReturn

from libs.common.errors import Corrupt, MusterError, Unavailable
from libs.common.process.clock import Clock
from services.audit.backup.places import sync_folder
from services.audit.chain.heads import LINE_BYTES_MAX, Head, Signer, decode, encode
from services.audit.export.feed import chain_hash
from services.audit.store.store import Store

LOOK_S: Final = 1.0
# Time until an error that only an operator can fix is logged again.
AGAIN_S: Final = 60.0
FOLDER: Final = "heads"

logger = logging.getLogger(__name__)


class Heads:
    """The files of signed heads in one state directory."""

    def __init__(self, state: Path) -> None:
        self.folder = state / FOLDER

    def newest(self) -> Head | None:
        """Return the head with the highest sequence; None if there is none.

        It is in the last whole line of a file, but not always of the newest file: a wrong clock may
        once have begun the file of a later month. Raises Corrupt if such a line is no head,
        Unavailable.
        """
        found = [_last(path) for path in sorted(self.folder.glob("*.ndjson"))]
        return max(
            (head for head in found if head is not None),
            key=lambda head: head.sequence,
            default=None,
        )

    def append(self, head: Head) -> None:
        """Append a head; return when it is on disk.

        A line that a crash left unfinished is removed first. Raises Unavailable.
        """
        path = self.folder / f"{head.at[:7]}.ndjson"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with path.open("ab") as file:
                is_new = file.tell() == 0
                tail = _tail(path)
                file.truncate(file.tell() - len(tail) + len(_whole(tail)))
                file.write(encode(head) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            if is_new:
                sync_folder(self.folder.parent)
                sync_folder(self.folder)
        except OSError as error:
            raise Unavailable(
                f"the head was not written to {path} ({error.strerror}): check the disk's space "
                "and the directory's permissions"
            ) from error


def _last(path: Path) -> Head | None:
    """Return the head in the last whole line of a file; None if it has none.

    Raises Corrupt, Unavailable.
    """
    try:
        whole = _whole(_tail(path))
    except OSError as error:
        raise Unavailable(
            f"the heads in {path} cannot be read ({error.strerror}): check the disk and the "
            "file's permissions"
        ) from error
    if not whole:
        return None
    try:
        return decode(whole.splitlines()[-1])
    except Corrupt as error:
        raise Corrupt(
            f"the last line of {path} was changed or damaged: {error}. Keep a copy of the file, "
            "then remove this line from it; see docs/howto/audit.md"
        ) from error


def _whole(tail: bytes) -> bytes:
    """Return the end of a file without lines that a crash left unfinished.

    Such a line has no end, or has zeros where a block of the disk was not written.
    """
    whole = tail[: tail.rfind(b"\n") + 1]
    while whole:
        begin = whole.rfind(b"\n", 0, -1) + 1
        line = whole[begin:-1]
        if line and b"\0" not in line:
            break
        whole = whole[:begin]
    return whole


def _tail(path: Path) -> bytes:
    """Return the end of a file, long enough for its last line; empty if there is no file."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2 * LINE_BYTES_MAX))
        return file.read()


class Notary:
    """The signer of one archive's heads.

    `head` is the newest signed head, once `read_newest` has read it. `archived` returns the
    archive's last sequence, `publish` sends a head to the stream.
    """

    def __init__(
        self,
        store: Store,
        signer: Signer,
        files: Heads,
        cluster: str,
        clock: Clock,
        archived: Callable[[], int],
        publish: Callable[[Head], Awaitable[None]],
    ) -> None:
        self.store = store
        self.signer = signer
        self.files = files
        self.cluster = cluster
        self.clock = clock
        self.archived = archived
        self.publish = publish
        self.head: Head | None = None
        self._signed_boot_ns = 0
        self._is_read = False
        self._reading = asyncio.Lock()

    async def run(self, every_s: float, every_commits: int) -> NoReturn:
        """Sign for ever, each time after so many commits or seconds. The archive never waits."""
        while True:
            try:
                await self.read_newest()
                if self._due(every_s, every_commits):
                    await self.sign()
            except Unavailable as error:
                logger.warning("the head is not signed yet: %s", error)
            except MusterError as error:
                logger.error("the head is not signed: %s", error)
                await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(LOOK_S)

    async def read_newest(self) -> None:
        """Read the newest head from the files, once. Raises Corrupt, Unavailable."""
        async with self._reading:
            if not self._is_read:
                self.head = await asyncio.to_thread(self.files.newest)
                self._is_read = True

    async def newest(self) -> Head | None:
        """Return the newest signed head; None if there is none. Raises Corrupt, Unavailable."""
        await self.read_newest()
        return self.head

    def _due(self, every_s: float, every_commits: int) -> bool:
        fresh = self.archived() - (self.head.sequence if self.head else 0)
        waited_s = (self.clock.boot_ns() - self._signed_boot_ns) / 1e9
        return fresh >= every_commits or (
            fresh != 0 and (waited_s >= every_s or not self._signed_boot_ns)
        )

    async def sign(self) -> Head | None:
        """Sign the archive's current head and return it; None if the archive is empty.

        Raises Corrupt, Unavailable.
        """
        await self.read_newest()
        link = await asyncio.to_thread(self.store.head_now)
        await self._check_last(link.seq if link is not None else 0)
        if link is None:
            return None
        at = (
            datetime.fromtimestamp(self.clock.wall_ns() / 1e9, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        head = self.signer.sign(self.cluster, link.seq, link.hash, at)
        await asyncio.to_thread(self.files.append, head)
        self.head, self._signed_boot_ns = head, self.clock.boot_ns()
        await self.publish(head)
        return head

    async def _check_last(self, end: int) -> None:
        """Raise Corrupt if the archive does not hold the last signed head."""
        last = self.head
        if (
            last is not None
            and await asyncio.to_thread(chain_hash, self.store, last.sequence) != last.hash
        ):
            how = "ends before it" if end < last.sequence else "has another hash there"
            raise Corrupt(
                f"the head of commit {last.sequence} was signed at {last.at}, and the "
                f"archive {how}: see docs/howto/audit.md"
            )
