"""The number of this agent's lives, in one small file that survives a power cut."""

import asyncio
import os
from pathlib import Path

from libs.common.errors import Corrupt

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
        await asyncio.to_thread(self._store, incarnation)

    def _store(self, incarnation: int) -> None:
        draft = self.path.with_suffix(".draft")
        with open(draft, "w") as file:
            file.write(str(incarnation))
            file.flush()
            os.fsync(file.fileno())
        draft.rename(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
