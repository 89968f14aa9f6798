"""The incarnation number, the name of the state directory, and small files that survive a power
cut.

The directory's name tells a restarted agent from one that has the same node id but an empty
directory. The second knows nothing of jobs that the first may have left running. For the same
reason a state directory must never be copied to another machine. Only the newest evidence files
stay: a job that hangs again and again must not fill the disk. The other files are padded with
spaces to whole blocks, and keep their space on a disk that jobs have filled. Tests:
tests/unit/test_kept_evidence.py, tests/integration/test_agent_full_disk.py.
"""

import asyncio
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

from libs.common import reading
from libs.common.errors import Corrupt
from libs.common.folds.node_fold import INCARNATIONS_MAX
from libs.common.transport.log import Entry
from services.node_agent.core import kept_devices
from services.node_agent.drivers import absent
from services.node_agent.health import scrubbing
from services.node_agent.machine import synced_file

FILE = "incarnation"
NAME_FILE = "directory"
NAME_BYTES = 12
EVIDENCE: Final = "evidence-"
EVIDENCE_KEPT: Final = 100
BLOCK_BYTES: Final = 4_096
# Space for what is kept about devices, also before there is anything.
RESERVED_BYTES: Final = {
    kept_devices.FILE: 4 * BLOCK_BYTES,
    absent.FILE: 4 * BLOCK_BYTES,
    scrubbing.FILE: BLOCK_BYTES,
}


def next_incarnation(kept: int, last: Entry | None) -> int:
    """Return the number of a new incarnation.

    `kept` is the last one of this directory, `last` the last commit of the node's subject. A number
    far ahead of `kept` may be forged, and the fold would ignore what follows it; the lease then
    names the true one.
    """
    recorded = reading.read_alone(last.subject, last.data).epoch if last is not None else 0
    return max(kept, recorded if recorded <= kept + INCARNATIONS_MAX else 0) + 1


class IncarnationFile:
    """The small files of one state directory; implements `directories.protocol.Memory`."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / FILE
        self.name_path = state_dir / NAME_FILE

    async def directory(self) -> str:
        if not self.name_path.exists():
            await asyncio.to_thread(
                synced_file.replace, self.name_path, secrets.token_hex(NAME_BYTES).encode()
            )
        return self.name_path.read_text()

    async def load(self) -> int:
        try:
            return int(self.path.read_text())
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise Corrupt(
                f"{self.path} does not hold a number ({error}): remove it, the log knows the "
                "last one too"
            ) from error

    async def store(self, incarnation: int) -> None:
        await asyncio.to_thread(synced_file.exchange, self.path, _padded(str(incarnation).encode()))
        for name, size in RESERVED_BYTES.items():
            await asyncio.to_thread(synced_file.reserve, self.path.parent / name, size)

    async def kept(self, name: str) -> bytes:
        path = self.path.parent / name
        return path.read_bytes().rstrip(b" ") if path.exists() else b""

    async def keep(self, name: str, data: bytes) -> None:
        path = self.path.parent / name
        if name.startswith(EVIDENCE):
            await asyncio.to_thread(synced_file.replace, path, data)
            await asyncio.to_thread(_prune, self.path.parent)
            return
        data = _padded(data).ljust(RESERVED_BYTES.get(name, 0))
        await asyncio.to_thread(synced_file.exchange, path, data)


def _padded(data: bytes) -> bytes:
    """Return the data with spaces up to the end of its last block."""
    return data.ljust(-(-len(data) // BLOCK_BYTES) * BLOCK_BYTES)


def _prune(folder: Path) -> None:
    """Remove the oldest evidence files. Two calls at once may find the same ones."""
    with suppress(FileNotFoundError):
        found = sorted(folder.glob(f"{EVIDENCE}*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in found[:-EVIDENCE_KEPT]:
            path.unlink(missing_ok=True)
