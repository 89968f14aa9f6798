"""The number of this agent's lives, and the name of its state directory, in small files that survive a power cut.

The name tells an agent that goes on from one that begins with an empty directory under a known node id, which knows nothing of the jobs
that the one before it may have left alive. So a state directory must never be copied to another machine.
"""

import asyncio
import secrets
from pathlib import Path

from libs.common.errors import Corrupt
from services.node_agent import synced_file

FILE = "incarnation"
NAME_FILE = "directory"
NAME_BYTES = 12


class IncarnationFile:
    """See `supervision_protocol.Memory`."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / FILE
        self.name_path = state_dir / NAME_FILE

    async def directory(self) -> str:
        if not self.name_path.exists():
            await asyncio.to_thread(synced_file.replace, self.name_path, secrets.token_hex(NAME_BYTES).encode())
        return self.name_path.read_text()

    async def load(self) -> int:
        try:
            return int(self.path.read_text())
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise Corrupt(f"{self.path} does not hold a number ({error}): remove it, the log knows the last one too") from error

    async def store(self, incarnation: int) -> None:
        await asyncio.to_thread(synced_file.replace, self.path, str(incarnation).encode())

    async def kept(self, name: str) -> bytes:
        path = self.path.parent / name
        return path.read_bytes() if path.exists() else b""

    async def keep(self, name: str, data: bytes) -> None:
        await asyncio.to_thread(synced_file.replace, self.path.parent / name, data)
