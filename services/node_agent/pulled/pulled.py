"""Gives jobs the models that their tenant has pulled to this node, and lists and removes them.

    PULLED_DIR/copies/TENANT/    the copies (libs/job/pulling/copies.py), written by the pulls
    PULLED_DIR/uses/TENANT/      a file for each attempt that uses copies, written by the agent

Both folders belong to the agent. Their group is the tenant's, which each attempt that pulls or uses
a copy gets, under whatever Unix user it runs. So the copies are open to all jobs of the tenant, and
to no other. The agent reads and removes copies as the tenant's user. Tests:
tests/integration/test_pulled_agent.py, tests/integration/test_pulled_cluster.py.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from libs.common import placeholders
from libs.common.errors import Refused
from libs.common.messages import StartOrder
from libs.common.messages.pulled_messages import PulledAsk, PulledCopy, PulledReport
from libs.common.model import NodeId
from libs.common.safety.folder_walk import remove_tree
from libs.common.subjects import ask_node
from libs.common.transport.bus import Bus
from libs.job.pulling import command
from libs.job.pulling.copies import Copies, Copy
from libs.job.pulling.errors import PullError
from libs.job.pulling.listing import SIZE_MAX, folder_of, reference_of
from services.node_agent.core.state import key_of
from services.node_agent.directories.acting_as import acting_as
from services.node_agent.directories.job_ownership import PASSABLE, is_passable, make_passable
from services.node_agent.directories.protocol import Launch, Machine
from services.node_agent.pulled.program import packed, python_of

THREADS: Final = 2
ASKERS: Final = 4
# Copies in one answer and their bytes, so that it fits a message.
SHOWN_MAX: Final = 200
SHOWN_BYTES_MAX: Final = 256 << 10
STAYS_MAX: Final = 8
# Requests of one tenant that wait or are answered. More would delay those of other tenants.
ASKS_MAX: Final = 8
# The last time that rfc3339 texts and 64 bits hold.
NS_MAX: Final = (1 << 63) - 1
COPIES: Final = "copies"
USES: Final = "uses"
OWNER_ONLY: Final = 0o700
# The group may write, and what is made in the folder belongs to the group.
SHARED: Final = 0o2770
READ_BY_GROUP: Final = 0o2750
NOTE_MODE: Final = 0o640

_ask = msgspec.msgpack.Decoder(PulledAsk)
_encode = msgspec.msgpack.Encoder().encode


class Pulled:
    """The pulled copies of one agent. `bound_bytes` bounds those of each tenant (0: no bound)."""

    def __init__(
        self, machine: Machine, state_dir: Path, folder: Path, bound_bytes: int, hub: str
    ) -> None:
        self.machine, self.state_dir, self.folder = machine, state_dir, folder
        self.bound_bytes, self.hub = bound_bytes, hub
        self.threads = ThreadPoolExecutor(THREADS, "pulled")
        # Requests of gateways have threads of their own: a tenant with many files delays no start.
        self.askers = ThreadPoolExecutor(ASKERS, "pulled-asks")
        self.asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.asks: Counter[str] = Counter()
        # The attempts that may have noted a use. All others need no look at the disk.
        self.holders: set[str] = set()

    async def listen(self, bus: Bus, node_id: str) -> None:
        """Answer gateways that ask for copies."""
        await bus.subscribe(ask_node(NodeId(node_id), "pulled"), self._on_ask, concurrent=True)

    def close(self) -> None:
        for threads in (self.threads, self.askers):
            threads.shutdown(wait=False, cancel_futures=True)

    def adopt(self, keys: Collection[str]) -> None:
        """End the uses of attempts of this node that are not among `keys`. Blocks."""
        for note in self._notes(""):
            key = note.name.rpartition("@")[0]
            if key in keys:
                self.holders.add(key)
            else:
                note.unlink(missing_ok=True)

    async def hold(self, launch: Launch, order: StartOrder) -> Launch:
        """Return the launch with the folders of the copies that it names, or of a pull.

        Raises Refused.
        """
        words = order.spec.command
        names = placeholders.pulled_in((*words, *order.spec.env.values()))
        if not names and words[:1] != (placeholders.PULL,):
            return launch
        self.holders.add(key_of(launch.ref))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.threads, self._held, launch, order, names)

    async def let_go(self, key: str) -> None:
        """End the uses of an attempt. Harmless when repeated."""
        if key in self.holders:
            await asyncio.get_running_loop().run_in_executor(self.threads, self._let_go, key)
            self.holders.discard(key)

    def _held(self, launch: Launch, order: StartOrder, names: Sequence[str]) -> Launch:
        try:
            launch = self._opened(launch, order.tenant)
            ids = launch.account.ids if launch.account is not None else ()
            if order.spec.command[:1] == (placeholders.PULL,):
                return self._pull(launch, order)
            return self._using(launch, order, names, ids)
        except PullError as error:
            raise Refused(f"pulled model: {error}") from error
        except (OSError, ValueError) as error:  # jobs of the tenant write there
            raise Refused(f"pulled models cannot be used on this node: {error}") from error

    def _opened(self, launch: Launch, tenant: str) -> Launch:
        """Create the tenant's folders, and give the attempt their group.

        Raises Refused and OSError.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        for path in (self.folder, self.folder / COPIES, self.folder / USES):
            _make(path, PASSABLE)
        for kind in (COPIES, USES):
            _make(self.folder / kind / tenant, OWNER_ONLY)
        account = launch.account
        if account is None:
            return launch
        if self.folder.parent == self.state_dir:
            make_passable(self.state_dir)
        if not is_passable(self.folder / COPIES):
            raise Refused(
                f"the user of tenant {tenant} cannot reach {self.folder}: set MUSTER_PULLED_DIR on "
                "this node to a folder that all users can pass"
            )
        number = self.machine.numbers.number(tenant)
        for kind, mode in ((COPIES, SHARED), (USES, READ_BY_GROUP)):
            folder = os.open(self.folder / kind / tenant, os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                os.fchown(folder, -1, number)
                os.fchmod(folder, mode)
            finally:
                os.close(folder)
        if number in (account.gid, *account.groups):
            return launch
        return replace(launch, account=account._replace(groups=(*account.groups, number)))

    def _pull(self, launch: Launch, order: StartOrder) -> Launch:
        """Return the launch of the pull program."""
        if order.spec.image:
            raise Refused("a pull runs without an image: leave --image out")
        python = python_of(launch.account is not None, launch.env.get("PATH", ""))
        copies = self._copies(order.tenant)
        own = {
            command.FOLDER: str(copies.folder),
            command.USES: str(copies.uses),
            command.BYTES: str(self.bound_bytes),
            command.HUB: self.hub,
        }
        argv = (python, "-I", str(packed(self.folder)), *order.spec.command[1:])
        return replace(launch, argv=argv, env={**launch.env, **own}, workdir=str(copies.folder))

    def _using(
        self, launch: Launch, order: StartOrder, names: Sequence[str], ids: Sequence[int]
    ) -> Launch:
        """Return the launch with the folders of copies, and note their use.

        The note is written before the copies are looked for again (`copies.py` says why).
        """
        copies = self._copies(order.tenant)
        found = self._found(copies, names, ids)
        note = copies.uses / f"{key_of(launch.ref)}@{self.machine.node_id}"
        _write(note, "\n".join(copy.name for copy in found.values()))
        try:
            with acting_as(ids):
                for name, copy in found.items():
                    if copies.read(copy.repository, copy.commit) is None:
                        raise Refused(self._lacking(name))
                    copies.touch(copy)
        except (Refused, OSError):
            note.unlink(missing_ok=True)
            raise
        paths = {name: str(_place(copies, copy)) for name, copy in found.items()}
        env = {
            name: placeholders.with_pulled(value, paths) if name in order.spec.env else value
            for name, value in launch.env.items()
        }
        return replace(
            launch,
            argv=tuple(placeholders.with_pulled(word, paths) for word in launch.argv),
            env=env,
            mounts=tuple(_mount(copies, copy) for copy in found.values()),
        )

    def _found(self, copies: Copies, names: Sequence[str], ids: Sequence[int]) -> dict[str, Copy]:
        """Return the copies by reference. Raises Refused for one that is not here."""
        found = {}
        with acting_as(ids):
            for name in names:
                copy = copies.find(*reference_of(name))
                if copy is None:
                    raise Refused(self._lacking(name))
                found[name] = copy
        return found

    def _lacking(self, name: str) -> str:
        repository, revision = reference_of(name)
        return (
            f"node {self.machine.node_id} has no copy of {repository} (revision {revision}): "
            f"muster model pull {repository} --revision {revision} --to-node {self.machine.node_id}"
        )

    def _let_go(self, key: str) -> None:
        for note in self._notes(key):
            copies = self._copies(note.parent.name)
            with contextlib.suppress(OSError):
                names = note.read_text().split("\n")
                note.unlink(missing_ok=True)
                with acting_as(_ids_of(copies.folder)):
                    for name in names:
                        copies.touch_name(name)

    def _notes(self, key: str) -> list[Path]:
        """Return this agent's notes of an attempt; of all attempts if `key` is empty."""
        end = f"{key}@{self.machine.node_id}"
        return [
            note
            for folder in _entries(self.folder / USES)
            for note in ([folder / end] if key else _entries(folder))
            if note.name.endswith(end) and note.exists()
        ]

    def _copies(self, tenant: str) -> Copies:
        return Copies(self.folder / COPIES / tenant, self.folder / USES / tenant, remove_tree)

    async def _on_ask(self, subject: str, data: bytes) -> bytes:
        try:
            ask = _ask.decode(data)
        except msgspec.DecodeError as error:
            return _encode(PulledReport(error=f"not a PulledAsk: {error}"))
        if self.asks[ask.tenant] >= ASKS_MAX:
            why = f"{ASKS_MAX} requests for your pulled models wait on this node: try again later"
            return _encode(PulledReport(error=why))
        lock = self.asking.get(ask.tenant) or asyncio.Lock()
        self.asking[ask.tenant] = lock  # kept as long as a request uses it
        self.asks[ask.tenant] += 1
        try:
            async with lock:
                loop = asyncio.get_running_loop()
                return _encode(await loop.run_in_executor(self.askers, self.report, ask))
        finally:
            self.asks[ask.tenant] -= 1
            self.asks += Counter()  # forget tenants without requests

    def report(self, ask: PulledAsk) -> PulledReport:
        """Remove the copies that the request names, if any, and list those that are left.

        Blocks.
        """
        copies = self._copies(ask.tenant)
        if ask.tenant not in {folder.name for folder in _entries(self.folder / COPIES)}:
            return PulledReport(bound_bytes=self.bound_bytes)
        try:
            with acting_as(_ids_of(copies.folder)):
                return self._report(copies, ask)
        except (OSError, ValueError) as error:  # jobs of the tenant write there
            return PulledReport(error=f"the copies cannot be read: {error}")

    def _report(self, copies: Copies, ask: PulledAsk) -> PulledReport:
        used = copies.used()
        removed, stays = [], []
        for copy in copies.all() if ask.remove else ():
            if copy.repository == ask.remove and ask.commit in ("", copy.commit):
                if why := copies.remove(copy):
                    stays.append(f"{copy.reference}: {why}")
                else:
                    removed.append(_shown(copies, copy, used))
        left = copies.all()
        shown = _fitting([_shown(copies, copy, used) for copy in left[:SHOWN_MAX]])
        return PulledReport(
            copies=shown,
            bound_bytes=self.bound_bytes,
            removed=_fitting(removed[:SHOWN_MAX]),
            stays="; ".join(stays[:STAYS_MAX]),
            left_out=len(left) - len(shown),
        )


def _fitting(shown: Sequence[PulledCopy]) -> tuple[PulledCopy, ...]:
    """Return the first of these copies, as many as fit an answer."""
    sizes = accumulate(len(_encode(each)) for each in shown)
    return tuple(each for each, size in zip(shown, sizes, strict=True) if size <= SHOWN_BYTES_MAX)


def _shown(copies: Copies, copy: Copy, used: Collection[str]) -> PulledCopy:
    return PulledCopy(
        repository=copy.repository,
        commit=copy.commit,
        revisions=copy.revisions,
        size_bytes=min(copy.size_bytes, SIZE_MAX),  # sparse files may have any size
        files=copy.files,
        complete=copy.complete,
        in_use=copy.name in used,
        used_ns=min(max(copy.used_ns, 0), NS_MAX),  # a job may set any time
        path=str(_place(copies, copy)),
        include=copy.include,
        job_id=copy.job_id,
    )


def _place(copies: Copies, copy: Copy) -> Path:
    return copies.place(copy.repository, copy.commit)


def _mount(copies: Copies, copy: Copy) -> Mapping[str, Any]:
    """Return the mount of a copy for runner.py, which opens it as the job's user without links."""
    return {
        "root": str(copies.folder),
        "names": [folder_of(copy.repository), copy.commit],
        "target": str(_place(copies, copy)),
        "read_only": True,
    }


def _ids_of(folder: Path) -> Sequence[int]:
    """Return the user as which the agent reads a tenant's folder; none: the agent's own."""
    group = os.stat(folder).st_gid
    return [group, group] if os.geteuid() == 0 and group != os.getegid() else ()


def _make(folder: Path, mode: int) -> None:
    """Create a folder with this mode, whatever the umask; one that exists stays as it is."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=OWNER_ONLY)
        folder.chmod(mode)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _write(path: Path, text: str) -> None:
    """Write a note for the tenant's pulls to read. Raises OSError."""
    draft = path.with_name(f".{path.name}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(draft, flags, NOTE_MODE), "w") as file:
        os.fchmod(file.fileno(), NOTE_MODE)
        file.write(text)
    draft.rename(path)
