"""The number of this agent's lives, in one small file that survives a power cut."""

import asyncio
from pathlib import Path

from libs.common.errors import Corrupt
from services.node_agent import synced_file

FILE = "incarnation"


class IncarnationFile:
    """See `supervision_protocol.Memory`."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / FILE

    async def load(self) -> int:
        try:
            return int(self.path.read_text())
        except FileNotFoundError:
            return 0
        except ValueError as error:
            raise Corrupt(f"{self.path} does not hold a number ({error}): remove it, the log knows the last one too") from error

    async def store(self, incarnation: int) -> None:
        await asyncio.to_thread(synced_file.replace, self.path, str(incarnation).encode())
