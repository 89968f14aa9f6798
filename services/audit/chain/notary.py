"""Signs the chain's head now and then, and publishes it where the database is not: files in the
state directory, the stream AUDIT_HEADS.

It never signs an archive that no longer holds what it signed last: that one was cut off or
rewritten, and says so each time. The files are appended to and synced, one a month; the stream may
miss a head (a lost answer), the files do not.
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
from services.audit.chain.heads import LINE_BYTES_MAX, Head, Signer, decode, encode
from services.audit.export.feed import chain_hash
from services.audit.store.store import Store

LOOK_S: Final = 1.0
# What only a person can put right is said again after so long.
AGAIN_S: Final = 60.0
FOLDER: Final = "heads"

logger = logging.getLogger(__name__)


class Heads:
    """The files of one state directory."""

    def __init__(self, state: Path) -> None:
        self.folder = state / FOLDER

    def newest(self) -> Head | None:
        """The last whole line of the last file. Raises Corrupt when it is no head."""
        for path in sorted(self.folder.glob("*.ndjson"), reverse=True):
            lines = _tail(path).rpartition(b"\n")[0].splitlines()
            if lines:
                return decode(lines[-1])
        return None

    def append(self, head: Head) -> None:
        """On disk when it returns; what a crash left of an unfinished line goes first.

        Raises Unavailable.
        """
        path = self.folder / f"{head.at[:7]}.ndjson"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with path.open("ab") as file:
                whole = file.tell() - len(_tail(path).rpartition(b"\n")[2])
                file.truncate(whole)
                file.write(encode(head) + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise Unavailable(
                f"the head was not written to {path} ({error.strerror}): is the disk full?"
            ) from error


def _tail(path: Path) -> bytes:
    """The end of a file, which holds its last line; empty for none."""
    if not path.exists():
        return b""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2 * LINE_BYTES_MAX))
        return file.read()


class Notary:
    """`head` is the newest that was signed; `archived` tells the archive's last sequence, `publish`
    sends a head on its way.
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
        self.store, self.signer, self.files, self.cluster, self.clock = (
            store,
            signer,
            files,
            cluster,
            clock,
        )
        self.archived, self.publish = archived, publish
        self.head = files.newest()
        self._signed_boot_ns = 0

    async def run(self, every_s: float, every_commits: int) -> NoReturn:
        """Sign when that many commits or seconds have passed, for ever; the archive never waits for
        it.
        """
        while True:
            try:
                if self._due(every_s, every_commits):
                    await self.sign()
            except Unavailable as error:
                logger.warning("the head waits: %s", error)
            except MusterError as error:
                logger.error("no head is signed: %s", error)
                await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(LOOK_S)

    def _due(self, every_s: float, every_commits: int) -> bool:
        fresh = self.archived() - (self.head.sequence if self.head else 0)
        waited_s = (self.clock.boot_ns() - self._signed_boot_ns) / 1e9
        return fresh >= every_commits or (
            fresh != 0 and (waited_s >= every_s or not self._signed_boot_ns)
        )

    async def sign(self) -> Head | None:
        """The head of what is archived now; None of an empty archive.

        Raises Corrupt, Unavailable.
        """
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
