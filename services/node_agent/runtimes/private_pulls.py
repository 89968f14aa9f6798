"""Repositories whose images may be in the engine without a note of the tenant that pulled them.

A pull with credentials is stored here before it begins, and removed once its image is noted in
`images.json` or the engine said that it failed. If the agent dies, the job is stopped or the engine
does not answer in between, it stays: then unknown images of the repository are given only to
tenants that pull them, so the registry decides. Tests: tests/integration/test_private_images.py.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from libs.common.container_spec import repository_of
from services.node_agent.machine import synced_file

FILE: Final = "private_pulls.json"
REPOSITORIES_MAX: Final = 1_000
# Stands for all repositories: there are too many, or a list of the agent was lost.
ALL: Final = "*"

logger = logging.getLogger(__name__)


class PrivatePulls:
    """The private pulls of one agent whose images are not noted, as a file in its state directory.

    `pending` counts them by repository.
    """

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / FILE
        self.pending: Counter[str] = Counter()
        self.stored: set[str] = set()
        self.lock = asyncio.Lock()

    async def load(self) -> None:
        """Read the file; if that fails, the images of all repositories are hidden."""
        try:
            found = msgspec.json.decode(
                await asyncio.to_thread(self.path.read_bytes), type=list[str]
            )
        except FileNotFoundError:
            found = []
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s cannot be read, so images are pulled again: %s", self.path, error)
            found = [ALL]
        self.stored.update(found)
        self.pending.update(found)

    async def begin(self, repository: str) -> None:
        """Store that a pull is about to begin. Raises OSError."""
        is_full = repository not in self.pending and len(self.pending) >= REPOSITORIES_MAX
        self.pending[ALL if is_full else repository] += 1
        await self._store()

    async def end(self, repository: str) -> None:
        """Forget a pull whose image is noted, or that brought none. Raises OSError."""
        if repository in self.pending:
            self.pending[repository] -= 1
            self.pending += Counter()  # drops what is at zero
            await self._store()

    def hides(self, names: Iterable[str]) -> bool:
        """Return whether an unknown image with these names may be private."""
        return ALL in self.pending or any(repository_of(name) in self.pending for name in names)

    async def _store(self) -> None:
        async with self.lock:
            if self.stored == self.pending.keys():
                return
            names = sorted(self.pending)
            await asyncio.to_thread(synced_file.replace, self.path, msgspec.json.encode(names))
            self.stored = set(names)
