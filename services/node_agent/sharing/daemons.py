"""The MPS daemons of this node and their users: started before the first user, ended after the
last, found again by the next agent.

The disk is the truth: a daemon is written down before it starts, and forgotten when nothing of it
is left. If a daemon dies, its attempts cannot go on, and the core is told. Tests:
tests/integration/test_mps.py.
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
    """The control program (a path, or a name to find in PATH), and how long it may take to answer
    and to quit.
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
        for one in self.daemons.values():
            if not one.users:
                self._end_soon(one)
            elif d.is_living(one.known):
                self._watch(one)
            else:
                self._died(one)

    async def hold(self, key: str, name: str, wanted: Known) -> None:
        """Start the daemon if necessary, and keep it until this attempt lets go. Raises Refused."""
        one = self.daemons.setdefault(name, Daemon(self.folder(name), wanted))
        one.users[key] = None
        held = False
        try:
            async with one.lock:
                if not d.is_living(one.known):
                    await self._begin(one, wanted)
            held = True
        finally:
            if not held:
                one.users.pop(key, None)

    async def let_go(self, key: str) -> str:
        """Release the attempt's daemon; return the text for the receipt, empty if it had none.

        Harmless when repeated.
        """
        one = next(
            (each for each in self.daemons.values() if key in each.users), self.released.get(key)
        )
        if one is None:
            return ""
        one.users.pop(key, None)
        self.released[key] = one
        if not one.users and self._is_known(one):
            await asyncio.wait([self._end_soon(one)], timeout=LOOK_S)
        return await self._found(one)

    def forget(self, key: str) -> None:
        self.released.pop(key, None)

    async def left(self, uuids: Collection[GpuId]) -> dict[GpuId, str]:
        """Return the devices among these on which an unused daemon has left something."""
        found: dict[GpuId, str] = {}
        for one in list(self.daemons.values()):
            mine = [uuid for uuid in uuids if uuid in one.known.uuids]
            if one.users or not mine:
                continue
            self._end_soon(one)
            if there := await asyncio.to_thread(d.rest, one.folder, one.known):
                found |= dict.fromkeys(mine, f"MPS is left: {_named(there)}")
        return found

    async def close(self) -> None:
        """Stop watching; daemons live on."""
        ending = [one.ending for one in self.daemons.values() if one.ending is not None]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for one in self.daemons.values():
            self._unwatch(one)

    def _is_known(self, one: Daemon) -> bool:
        """Return whether this is still the daemon of its name: another one may have its folder."""
        return self.daemons.get(os.path.basename(one.folder)) is one

    async def _found(self, one: Daemon) -> str:
        if one.users:
            return SHARED
        there = (
            await asyncio.to_thread(d.rest, one.folder, one.known) if self._is_known(one) else ()
        )
        return f"left: {_named(there)}" if there else FORCED if one.forced else GONE

    # Its beginning.

    async def _begin(self, one: Daemon, wanted: Known) -> None:
        """Start a daemon, after removing what is left of one that died."""
        if self.program.lacking:
            raise Refused(f"isolation mps: {self.program.lacking}")
        self._unwatch(one)
        if not await self._killed(one):
            there = await asyncio.to_thread(d.rest, one.folder, one.known)
            raise Refused(f"isolation mps: of the MPS daemon before it is left: {_named(there)}")
        try:
            await asyncio.to_thread(self._prepared, one, wanted)
            one.known = await asyncio.to_thread(
                d.begin, self.program.path, one.folder, wanted, self.home
            )
            await asyncio.to_thread(d.keep, one.path, one.known)
        except OSError as error:
            raise Refused(f"isolation mps: the MPS daemon could not be begun: {error}") from error
        await self._answers(one)
        logger.info("MPS daemon %d begun for %s", one.known.pid, ", ".join(one.known.uuids))
        self._watch(one)

    def _prepared(self, one: Daemon, wanted: Known) -> None:
        self.dir.mkdir(parents=True, exist_ok=True)
        d.make_folders(one.folder, wanted.ids)
        d.keep(one.path, wanted)

    async def _answers(self, one: Daemon) -> None:
        """Wait until the daemon answers. Raises Refused with its last words, after it was ended
        again.
        """
        loop = asyncio.get_running_loop()
        until, why = loop.time() + self.program.start_s, "it did not answer"
        while d.is_living(one.known) and loop.time() < until:
            try:
                await d.ask(self.program.path, one.folder, one.known, "get_server_list")
                return
            except Refused as error:
                why = str(error)
            await asyncio.sleep(READY_AGAIN_S)
        how = (
            f"it did not begin within {self.program.start_s:.0f} s: {why}"
            if d.is_living(one.known)
            else "it ended at once"
        )
        words = await asyncio.to_thread(d.last_words, one.folder)
        await self._killed(one)
        raise Refused(
            f"isolation mps: the MPS daemon did not start: {': '.join(filter(None, (how, words)))}"
        )

    # Its life.

    def _watch(self, one: Daemon) -> None:
        """Watch the daemon's process; one that is dead already is noticed at once."""
        try:
            one.watched = os.pidfd_open(one.known.pid)
        except OSError:
            self._died(one)
            return
        asyncio.get_running_loop().add_reader(one.watched, partial(self._died, one))

    def _unwatch(self, one: Daemon) -> None:
        if one.watched >= 0:
            asyncio.get_running_loop().remove_reader(one.watched)
            os.close(one.watched)
            one.watched = -1

    def _died(self, one: Daemon) -> None:
        self._unwatch(one)
        what = f"the MPS daemon {one.known.pid} of GPU {', '.join(one.known.uuids)} died"
        words = d.last_words(one.folder)
        for key in one.users:
            self.lost(key, f"{what}: {words}" if words else what)

    # Its end.

    def _end_soon(self, one: Daemon) -> asyncio.Task[None]:
        if one.ending is None or one.ending.done():
            one.ending = asyncio.create_task(self._end(one))
        return one.ending

    async def _end(self, one: Daemon) -> None:
        """End a daemon by its own command, else by force; forget it once nothing is left.

        A user that came in the meantime keeps it.
        """
        async with one.lock:
            if one.users:
                return
            self._unwatch(one)
            one.forced = not await self._quit(one)
            if one.forced:
                logger.warning(
                    "the MPS daemon %d of %s does not quit, it is killed",
                    one.known.pid,
                    ", ".join(one.known.uuids),
                )
            if await self._killed(one):
                await asyncio.to_thread(self._forget, one)
                if not one.users and self._is_known(one):
                    del self.daemons[os.path.basename(one.folder)]

    async def _quit(self, one: Daemon) -> bool:
        """Return whether the daemon ended by its command; True if it was dead already."""
        if not d.is_living(one.known):
            return True
        try:
            await d.ask(self.program.path or self.program.name, one.folder, one.known, "quit")
        except Refused as error:
            logger.warning("MPS daemon %d: %s", one.known.pid, error)
        return await self._is_gone(one, self.program.quit_s)

    async def _killed(self, one: Daemon) -> bool:
        """Kill the daemon; return whether nothing is left."""
        if not await asyncio.to_thread(d.rest, one.folder, one.known):
            return True
        await asyncio.to_thread(d.end_by_force, one.folder, one.known)
        return await self._is_gone(one, KILL_S)

    async def _is_gone(self, one: Daemon, within_s: float) -> bool:
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + within_s, GONE_FIRST_S
        while await asyncio.to_thread(d.rest, one.folder, one.known):
            if loop.time() >= until:
                return False
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, GONE_MAX_S)
        return True

    def _forget(self, one: Daemon) -> None:
        remove_tree(one.folder)
        one.path.unlink(missing_ok=True)
        cgroups.remove(self.home, os.path.basename(one.folder))


def _named(there: Collection[Process]) -> str:
    return ", ".join(f"{each.pid} {each.name}" for each in there)
