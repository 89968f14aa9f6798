"""Folders of the agent that containers see: scratch directories of attempts, and caches of tenants.

They lie below folders that only the agent can open, so their modes matter inside containers alone.
A cache stays between jobs. Before a start, the least recently used caches of the tenant that no
container uses are removed until its bound holds, those of the starting job last; nothing stops a
job that fills one. Tests: tests/integration/test_container_options.py,
tests/integration/test_container_caches.py.
"""

import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from libs.common.container_spec import CACHE_VARIABLES, ContainerSpec, cache_path
from libs.common.safety.folder_walk import remove_tree, size_of
from services.node_agent.runtimes.container import mounted

SCRATCH: Final = "scratch"
# The scratch directory in which a job touches its checkpoint file, and where the container has it.
SAVED: Final = "saved"
SAVED_AT: Final = "/.muster-saved"
CACHES: Final = "caches"
CLOSED: Final = 0o700
OPEN: Final = 0o1777


class Lent(NamedTuple):
    """The mounts of an attempt, the variables that name its caches, and the caches' folders."""

    mounts: list[dict[str, Any]]
    env: dict[str, str]
    caches: list[str]


class OwnFolders:
    """The folders of one agent. `cache_bytes` bounds the caches of each tenant; 0: no bound."""

    def __init__(self, state_dir: Path, cache_bytes: int = 0) -> None:
        self.state_dir, self.cache_bytes = state_dir, cache_bytes

    def lend(
        self,
        key: str,
        tenant: str,
        wish: ContainerSpec,
        env: Mapping[str, str],
        used: Sequence[str],
    ) -> Lent:
        """Create the folders of an attempt. `used` are caches of other attempts.

        Blocks: measures the caches of the tenant. One call at a time for each tenant. Raises
        OSError.
        """
        mounts = [
            mounted(self._made(SCRATCH, key, str(number)), scratch.target)
            for number, scratch in enumerate(wish.scratch)
            if not scratch.memory
        ]
        mounts.append(mounted(self._made(SCRATCH, key, SAVED), SAVED_AT))
        caches = self.caches(tenant, wish)
        if caches:
            self._bound(tenant, caches, used)
        for name, folder in zip(wish.caches, caches, strict=True):
            self._made(CACHES, tenant, name)
            os.utime(folder, ns=(time.time_ns(), time.time_ns()))
            mounts.append(mounted(folder, cache_path(name)))
        variables = {
            CACHE_VARIABLES[name]: cache_path(name)
            for name in wish.caches
            if name in CACHE_VARIABLES and CACHE_VARIABLES[name] not in env
        }
        return Lent(mounts, variables, caches)

    def caches(self, tenant: str, wish: ContainerSpec) -> list[str]:
        """Return the folders of the caches that a job asks for."""
        return [str(self._folder(CACHES, tenant) / name) for name in wish.caches]

    def let_go(self, key: str) -> bool:
        """Remove the scratch directories of an attempt; return whether they are gone. Blocks."""
        return remove_tree(self._folder(SCRATCH, key))

    def orphans(self, keys: Collection[str]) -> list[str]:
        """Return the attempts other than these that have scratch directories."""
        folder = self._folder(SCRATCH)
        found = os.listdir(folder) if folder.is_dir() else []
        return [key for key in found if key not in keys]

    def _folder(self, *names: str) -> Path:
        return self.state_dir.joinpath(*names)

    def _made(self, kind: str, *names: str) -> str:
        """Create a folder that everybody inside a container can use, below closed ones."""
        folder = self._folder(kind)
        for name in ("", *names[:-1]):
            folder /= name
            folder.mkdir(mode=CLOSED, exist_ok=True)
        folder /= names[-1]
        folder.mkdir(mode=CLOSED, exist_ok=True)
        folder.chmod(OPEN)  # also if an agent was killed before it
        return str(folder)

    def _bound(self, tenant: str, own: Sequence[str], used: Sequence[str]) -> None:
        """Remove the tenant's least recently used caches until its bound holds; `own` ones last."""
        parent = self._folder(CACHES, tenant)
        if not self.cache_bytes or not parent.is_dir():
            return
        sizes = {folder: size_of(folder) for folder in parent.iterdir()}
        left = sum(sizes.values())
        for folder in sorted(sizes, key=lambda each: (str(each) in own, each.stat().st_mtime_ns)):
            if left <= self.cache_bytes:
                return
            if str(folder) not in used and remove_tree(folder):
                left -= sizes[folder]
