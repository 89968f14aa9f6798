"""Starts an MPS daemon before its first user and ends it after the last one.

A file per daemon is written before the daemon starts, and removed when none of its processes is
left, so the next agent finds it again. If a daemon dies, its attempts cannot go on, and the core
receives ShareLost. Tests: tests/integration/test_mps.py.
"""

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from libs.common.errors import Refused
from libs.common.model import GpuId
from libs.common.safety.folder_walk import remove_tree
from services.node_agent.machine import cgroups
from services.node_agent.machine.processes import Process
from services.node_agent.sharing import daemon as d
from services.node_agent.sharing.daemon import Known

FOLDER: Final = "mps"
READY_AGAIN_S: Final = 0.05
GONE_FIRST_S: Final = 0.01
GONE_MAX_S: Final = 0.2
# A process that lives this long after SIGKILL hangs in the kernel. It is checked again with the
# device.
KILL_S: Final = 1.0
# A release check waits this long for the end of a daemon.
LOOK_S: Final = 0.4
GONE: Final = "gone"
FORCED: Final = "gone, by force: it did not end when told to quit"
SHARED: Final = "other jobs use it"

logger = logging.getLogger(__name__)


class Program(NamedTuple):
    """The control program, and how long it may take to start and to quit.

    `name` is a path, or a name to find in PATH.
    """

    name: str = "nvidia-cuda-mps-control"
    start_s: float = 10.0
    quit_s: float = 5.0

    @property
    def path(self) -> str:
        """The path of the program; empty if the machine has none."""
        return shutil.which(self.name) or ""

    @property
    def lacking(self) -> str:
        """Return why no daemon can start; empty if one can."""
        return "" if self.path else f"{self.name} is not on this machine (MUSTER_MPS_CONTROL)"


class Daemon:
    """One daemon: its folder, its record, and the attempts that use it."""

    def __init__(self, folder: str, known: Known) -> None:
        self.folder, self.known = folder, known
        self.users: dict[str, None] = {}
        self.lock = asyncio.Lock()
        self.watched = -1
        self.ending: asyncio.Task[None] | None = None
        self.forced = False

    @property
    def path(self) -> Path:
        return Path(f"{self.folder}.json")


class Daemons:
    """The daemons of one agent.

    `home`: see `cgroups.Home.dirs`. `lost` is called for each attempt whose daemon died, with the
    reason.
    """

    def __init__(
        self,
        state_dir: Path,
        program: Program,
        home: Mapping[str, str],
        lost: Callable[[str, str], None],
    ) -> None:
        self.dir, self.program, self.home, self.lost = (
            state_dir.resolve() / FOLDER,
            program,
            dict(home),
            lost,
        )
        self.daemons: dict[str, Daemon] = {}
        self.released: dict[str, Daemon] = {}

    def folder(self, name: str) -> str:
        return f"{self.dir}/{name}"

    async def adopt(self, users: Mapping[str, str]) -> None:
        """Take over the daemons on disk; `users` are attempts and the names of their daemons.

        A daemon without users ends.
        """
        for path in sorted(self.dir.glob("*.json")) if self.dir.is_dir() else ():
            known = d.kept(path)
            if known is not None:
                self.daemons[path.stem] = Daemon(self.folder(path.stem), known)
        for key, name in users.items():
            if name in self.daemons:
                self.daemons[name].users[key] = None
        for daemon in self.daemons.values():
            if not daemon.users:
                self._end_soon(daemon)
            elif d.is_living(daemon.known):
                self._watch(daemon)
            else:
                self._died(daemon)

    async def hold(self, key: str, name: str, wanted: Known) -> None:
        """Start the daemon if necessary, and keep it for this attempt. Raises Refused."""
        daemon = self.daemons.setdefault(name, Daemon(self.folder(name), wanted))
        daemon.users[key] = None
        held = False
        try:
            async with daemon.lock:
                if not d.is_living(daemon.known):
                    await self._begin(daemon, wanted)
            held = True
        finally:
            if not held:
                daemon.users.pop(key, None)

    async def let_go(self, key: str) -> str:
        """Release the attempt's daemon; return the text for the receipt, empty if it had none.

        Harmless when repeated.
        """
        daemon = next(
            (each for each in self.daemons.values() if key in each.users), self.released.get(key)
        )
        if daemon is None:
            return ""
        daemon.users.pop(key, None)
        self.released[key] = daemon
        if not daemon.users and self._is_known(daemon):
            await asyncio.wait([self._end_soon(daemon)], timeout=LOOK_S)
        return await self._found(daemon)

    def forget(self, key: str) -> None:
        self.released.pop(key, None)

    async def left(self, uuids: Collection[GpuId]) -> dict[GpuId, str]:
        """Return the devices among these on which an unused daemon has left something."""
        found: dict[GpuId, str] = {}
        for daemon in list(self.daemons.values()):
            mine = [uuid for uuid in uuids if uuid in daemon.known.uuids]
            if daemon.users or not mine:
                continue
            self._end_soon(daemon)
            if there := await asyncio.to_thread(d.living_processes, daemon.folder, daemon.known):
                found |= dict.fromkeys(mine, f"MPS is left: {_named(there)}")
        return found

    async def close(self) -> None:
        """Stop watching; daemons live on."""
        ending = [daemon.ending for daemon in self.daemons.values() if daemon.ending is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for daemon in self.daemons.values():
            self._unwatch(daemon)

    def _is_known(self, daemon: Daemon) -> bool:
        """Return whether this daemon is still the current one of its name."""
        return self.daemons.get(os.path.basename(daemon.folder)) is daemon

    async def _found(self, daemon: Daemon) -> str:
        if daemon.users:
            return SHARED
        there = (
            await asyncio.to_thread(d.living_processes, daemon.folder, daemon.known)
            if self._is_known(daemon)
            else ()
        )
        return f"left: {_named(there)}" if there else FORCED if daemon.forced else GONE

    # Start.

    async def _begin(self, daemon: Daemon, wanted: Known) -> None:
        """Start a daemon, after killing the remaining processes of one that died."""
        if self.program.lacking:
            raise Refused(f"isolation mps: {self.program.lacking}")
        self._unwatch(daemon)
        if not await self._killed(daemon):
            there = await asyncio.to_thread(d.living_processes, daemon.folder, daemon.known)
            raise Refused(
                f"isolation mps: processes of the previous MPS daemon are left: {_named(there)}"
            )
        try:
            await asyncio.to_thread(self._prepare, daemon, wanted)
            daemon.known = await asyncio.to_thread(
                d.begin, self.program.path, daemon.folder, wanted, self.home
            )
            await asyncio.to_thread(d.keep, daemon.path, daemon.known)
        except OSError as error:
            raise Refused(f"isolation mps: the MPS daemon could not be started: {error}") from error
        await self._answers(daemon)
        logger.info("MPS daemon %d started for %s", daemon.known.pid, ", ".join(daemon.known.uuids))
        self._watch(daemon)

    def _prepare(self, daemon: Daemon, wanted: Known) -> None:
        self.dir.mkdir(parents=True, exist_ok=True)
        d.make_folders(daemon.folder, wanted.ids)
        d.keep(daemon.path, wanted)

    async def _answers(self, daemon: Daemon) -> None:
        """Wait until the daemon answers.

        Otherwise kill it and raise Refused with its last words.
        """
        loop = asyncio.get_running_loop()
        until, why = loop.time() + self.program.start_s, "it did not answer"
        while d.is_living(daemon.known) and loop.time() < until:
            try:
                await d.ask(self.program.path, daemon.folder, daemon.known, "get_server_list")
                return
            except Refused as error:
                why = str(error)
            await asyncio.sleep(READY_AGAIN_S)
        how = (
            f"it did not start within {self.program.start_s:.0f} s: {why}"
            if d.is_living(daemon.known)
            else "it ended at once"
        )
        words = await asyncio.to_thread(d.last_words, daemon.folder)
        await self._killed(daemon)
        raise Refused(
            f"isolation mps: the MPS daemon did not start: {': '.join(filter(None, (how, words)))}"
        )

    # Watching.

    def _watch(self, daemon: Daemon) -> None:
        """Watch the daemon's process; if it is dead already, report that now."""
        try:
            daemon.watched = os.pidfd_open(daemon.known.pid)
        except OSError:
            self._died(daemon)
            return
        asyncio.get_running_loop().add_reader(daemon.watched, partial(self._died, daemon))

    def _unwatch(self, daemon: Daemon) -> None:
        if daemon.watched >= 0:
            asyncio.get_running_loop().remove_reader(daemon.watched)
            os.close(daemon.watched)
            daemon.watched = -1

    def _died(self, daemon: Daemon) -> None:
        self._unwatch(daemon)
        what = f"the MPS daemon {daemon.known.pid} of GPU {', '.join(daemon.known.uuids)} died"
        words = d.last_words(daemon.folder)
        for key in daemon.users:
            self.lost(key, f"{what}: {words}" if words else what)

    # End.

    def _end_soon(self, daemon: Daemon) -> asyncio.Task[None]:
        if daemon.ending is None or daemon.ending.done():
            daemon.ending = asyncio.create_task(self._end(daemon))
        return daemon.ending

    async def _end(self, daemon: Daemon) -> None:
        """End a daemon by its own command, else by force; forget it once no process is left.

        If it has got a user in the meantime, it stays.
        """
        async with daemon.lock:
            if daemon.users:
                return
            self._unwatch(daemon)
            daemon.forced = not await self._quit(daemon)
            if daemon.forced:
                logger.warning(
                    "the MPS daemon %d of %s does not quit: the agent kills it",
                    daemon.known.pid,
                    ", ".join(daemon.known.uuids),
                )
            if await self._killed(daemon):
                await asyncio.to_thread(self._forget, daemon)
                if not daemon.users and self._is_known(daemon):
                    del self.daemons[os.path.basename(daemon.folder)]

    async def _quit(self, daemon: Daemon) -> bool:
        """Return whether the daemon ended by its command; True if it was dead already."""
        if not d.is_living(daemon.known):
            return True
        try:
            await d.ask(self.program.path or self.program.name, daemon.folder, daemon.known, "quit")
        except Refused as error:
            logger.warning("MPS daemon %d: %s", daemon.known.pid, error)
        return await self._is_gone(daemon, self.program.quit_s)

    async def _killed(self, daemon: Daemon) -> bool:
        """Kill the daemon; return whether nothing is left."""
        if not await asyncio.to_thread(d.living_processes, daemon.folder, daemon.known):
            return True
        await asyncio.to_thread(d.end_by_force, daemon.folder, daemon.known)
        return await self._is_gone(daemon, KILL_S)

    async def _is_gone(self, daemon: Daemon, within_s: float) -> bool:
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + within_s, GONE_FIRST_S
        while await asyncio.to_thread(d.living_processes, daemon.folder, daemon.known):
            if loop.time() >= until:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, GONE_MAX_S)
        return True

    def _forget(self, daemon: Daemon) -> None:
        remove_tree(daemon.folder)
        daemon.path.unlink(missing_ok=True)
        cgroups.remove(self.home, os.path.basename(daemon.folder))


def _named(there: Collection[Process]) -> str:
    return ", ".join(f"{each.pid} {each.name}" for each in there)
