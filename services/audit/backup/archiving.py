"""The archive of a restored cluster: the database of MUSTER_AUDIT_URL, or a file in its state.

A database may hold a beginning of the backup, because an earlier restore was killed. Tests:
tests/integration/test_restored_archive.py.
"""

from pathlib import Path
from typing import Final

from libs.common.errors import Corrupt, Fenced, Refused
from libs.common.settings.settings import Settings
from libs.common.transport.log import Entry
from libs.embedded import permissions
from services.audit.backup.manifest import Manifest
from services.audit.store.store import Store

ADVICE: Final = (
    "set MUSTER_AUDIT_URL to an empty database, or leave it unset here and for `muster up` to keep "
    "the archive in the state directory"
)


class Archiving:
    """The archive that one restore fills. `url` is MUSTER_AUDIT_URL; empty: a file in the state."""

    def __init__(self, url: str, manifest: Manifest) -> None:
        self.manifest = manifest
        self.store: Store | None = _named(url, manifest.seq) if url else None

    def begin(self, folder: Path) -> None:
        """Create the archive's file in the state directory, unless a database is named."""
        own = folder / "services" / permissions.AUDIT
        own.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.store is None:
            self.store = Store(Settings(state=str(own)).audit_database)
            self.store.migrate()

    def append(self, batch: list[Entry]) -> None:
        """Archive commits; those that are there already are compared.

        Raises Refused for a database of another history, and as `Store.append` does.
        """
        assert self.store is not None
        try:
            self.store.append(batch)
        except Fenced as error:
            raise Refused(f"{error}: stop the old cluster before you restore its backup") from error
        except Corrupt as error:
            raise Refused(
                f"the archive cannot take the backup's commits ({error}): {ADVICE}"
            ) from error

    def check(self) -> None:
        """Check that the chain ends as the backup's does. Raises Corrupt."""
        assert self.store is not None
        head = self.store.head_now()
        if head is None or head.hash != self.manifest.chain:
            raise Corrupt(
                f"the archive's chain does not end in {self.manifest.chain}, as the backup's does: "
                f"{ADVICE}"
            )

    def close(self) -> None:
        if self.store is not None:
            self.store.close()


def _named(url: str, seq: int) -> Store:
    """Open the database. Raises Refused if it holds commits after `seq`, and as `Store` does."""
    store = Store(url)
    store.migrate()
    head = store.head()
    if head is not None and head.seq > seq:
        store.close()
        raise Refused(
            f"the archive that MUSTER_AUDIT_URL names holds commits up to {head.seq}, and the "
            f"backup ends at {seq}: a restored cluster could not continue it. Keep it as a record, "
            f"and {ADVICE}"
        )
    return store
