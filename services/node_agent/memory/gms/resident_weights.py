"""The agent's side of resident weights: what the agent calls, and its copy of the server's state.

`ResidentWeights` starts and restarts the server (`server.py`) and keeps a copy of its state and of
each descriptor, so that either side can be killed. If both end together only `residents.json` is
left: entries whose attempts still run are then lost, and count as their whole limit until these
attempts end (docs/decisions/0046). Tests: tests/integration/test_gms_restarts.py.
"""

import asyncio
import itertools
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from libs.job.memory.broker_wire import Link
from services.node_agent.memory.device_memory import Device
from services.node_agent.memory.gms import listing
from services.node_agent.memory.gms import state as s
from services.node_agent.memory.gms.server import CONTROL_BYTES_MAX, CONTROL_SOCKET
from services.node_agent.memory.grants import Refusal
from services.node_agent.memory.note import Note
from services.node_agent.memory.sibling import SiblingProcess

NOTED: Final = "residents.json"
PASSABLE: Final = 0o711
# How long a command may wait for the server, for example one that is being restarted.
ANSWER_S: Final = 10.0
# The `ask` number of a ping. Commands begin at 1.
NO_ASK: Final = 0

logger = logging.getLogger(__name__)


class Noted(msgspec.Struct):
    """The entries that are left when agent and server end together."""

    entries: list[s.Entry] = []
    admissions: list[tuple[str, s.Admission]] = []
    limits: list[tuple[str, int, int]] = []


_noted = msgspec.json.Decoder(Noted)


def socket_name(device: str, tag: str) -> str:
    """Return the file name under which engines look for a socket in GMS_SOCKET_DIR.

    `device` is the vendor's UUID of the GPU; `tag` is `weights` or `kv_cache`.
    """
    return f"gms_{device}_{tag}.sock"


class Copy:
    """The server's state and descriptors, as far as it has told them."""

    def __init__(self) -> None:
        self.residents = s.Residents()
        self.descriptors: dict[str, int] = {}

    def apply(self, change: s.Change, link: Link) -> None:
        """Apply a change that the server told."""
        if isinstance(change, s.Kept):
            self.descriptors[change.allocation.id] = link.take_descriptor()
        s.apply(self.residents, change)
        if isinstance(change, s.Freed):
            os.close(self.descriptors.pop(change.id))

    def forget(self) -> None:
        """Close all descriptors."""
        for descriptor in self.descriptors.values():
            os.close(descriptor)
        self.descriptors.clear()
        self.residents = s.Residents()


class ResidentWeights:
    """Weights that stay on the devices of one node. One per driver.

    `devices` are those of the driver. Every call raises Refusal, with a reason and a sentence, or
    TimeoutError if no server answers.
    """

    def __init__(self, folder: Path, driver: str, devices: Iterable[Device]) -> None:
        self.folder = folder
        self.devices = {device.number: device for device in devices}
        self.pid = 0
        command = (sys.executable, "-m", "services.node_agent.memory.gms")
        rest = (str(folder.resolve()), driver)
        self.sibling = SiblingProcess(
            self, folder, CONTROL_SOCKET, (*command, *rest), CONTROL_BYTES_MAX
        )
        # Called with each change of an entry that this agent did not know.
        self.changed: Callable[[s.Change], None] = lambda change: None
        self._copy = Copy()
        self._arriving: Copy | None = None
        self._ready = asyncio.Event()
        self._noted = Note(folder / NOTED)
        self._numbers = itertools.count(NO_ASK + 1)
        self._asked: dict[int, tuple[dict[str, Any], asyncio.Future[None]]] = {}
        self._task: asyncio.Task[None] | None = None

    # --- what the agent calls ---

    async def open(self, living: Collection[str]) -> None:
        """Find the server of an earlier agent, or start one; `living` are attempts that run."""
        self.folder.mkdir(mode=PASSABLE, parents=True, exist_ok=True)
        self.folder.chmod(PASSABLE)
        before = await asyncio.to_thread(self._read_note)
        self._task = asyncio.create_task(self.sibling.run())
        await self._ready.wait()
        await self._take_up(before, living)
        keys = {key for each in self._copy.residents.served.values() for key in each.admissions}
        for key in sorted(keys - set(living)):
            await self.dismiss(key)

    def use(self, devices: Iterable[Device]) -> None:
        """Add devices of the driver, for example those that came back."""
        found = {device.number: device for device in devices}
        if any(self.devices.get(number) != device for number, device in found.items()):
            self.devices |= found
            self._tell_devices()

    def _tell_devices(self) -> None:
        found = msgspec.to_builtins(list(self.devices.values()))
        self.sibling.send({"op": "devices", "devices": found})

    async def serve(self, entry: s.Entry) -> None:
        """Begin an entry and listen at its socket, whose folder exists. Harmless when repeated."""
        await self._ask({"op": "serve", "entry": msgspec.to_builtins(entry)})

    async def limit_tenant(self, tenant: str, device: int, limit: int) -> None:
        """Set the bytes of a device that a tenant may own in all its entries."""
        await self._ask({"op": "limit", "tenant": tenant, "device": device, "limit": limit})

    async def admit(self, entry: str, admission: s.Admission) -> None:
        """Let an attempt's processes connect. Refused for another tenant or other weights."""
        await self._ask(
            {"op": "admit", "entry": entry, "admission": msgspec.to_builtins(admission)}
        )

    async def dismiss(self, key: str) -> None:
        """End an attempt's sessions. What it has published stays, the rest is freed."""
        await self._ask({"op": "dismiss", "key": key})

    async def drop(self, entry: str, force: bool = False) -> None:
        """End an entry and free its memory.

        Refused (`in-use`) while processes use it, unless forced: they then lose their weights.
        """
        await self._ask({"op": "drop", "entry": entry, "force": force})

    def entries(self) -> Sequence[listing.Resident]:
        """Return all entries with their bytes and readers, orphans included."""
        return [listing.listed(each) for each in self._copy.residents.served.values()]

    def owned(self) -> dict[str, int]:
        """Return the bytes that each entry owns."""
        served = self._copy.residents.served
        return {name: s.owned_bytes(each) for name, each in served.items()}

    async def close(self) -> None:
        """Let go of the server. It lives on while there are entries, else it ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.sibling.unlink()
        self._abandon()
        if not self._copy.residents.served:
            await self.sibling.kill()
        self._copy.forget()

    async def _ask(self, message: dict[str, Any]) -> None:
        """Send a command and wait for its answer; the next server gets it again."""
        if self._task is None:
            async with asyncio.timeout(ANSWER_S):
                await self.open(())
        number = next(self._numbers)
        message["ask"] = number
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked[number] = (message, done)
        self.sibling.send(message)
        try:
            await asyncio.wait_for(done, ANSWER_S)
        finally:
            self._asked.pop(number, None)
        try:
            await self._noted.write(self._note())
        except OSError as error:
            logger.warning(
                "cannot note the weights on devices (%s): if the agent and the weight server end "
                "together, the next agent does not know of all of them",
                error,
            )

    # --- the server ---

    def found(self) -> None:
        """Take everything from a server that an earlier agent left."""
        self._arriving = Copy()

    def started(self) -> None:
        """Give a new server everything that the last one had."""
        self._tell_devices()
        self.sibling.send({"op": "restoring"})
        for change in s.rebuild(self._copy.residents):
            descriptor = -1
            if isinstance(change, s.Kept):
                descriptor = self._copy.descriptors[change.allocation.id]
            message = {"op": "change", "change": msgspec.to_builtins(change)}
            self.sibling.send(message, descriptor)
        self.sibling.send({"op": "restored"})
        self._repeat()

    def heard(self, link: Link, message: dict[str, Any]) -> None:
        """Apply what the server tells."""
        match message["op"]:
            case "change":
                change: s.Change = msgspec.convert(message["change"], s.Change)
                (self._arriving or self._copy).apply(change, link)
                if self._arriving is None:
                    self.changed(change)
            case "answer":
                self._answered(message)
            case "told" if self._arriving is not None:
                self._copy.forget()
                self._copy, self._arriving = self._arriving, None
                self._tell_devices()
                self._repeat()
                self._begin(message)
            case "ready":
                self._begin(message)

    def _begin(self, message: dict[str, Any]) -> None:
        self.pid = int(message["pid"])
        self._ready.set()

    def ping(self) -> dict[str, Any]:
        """Return a `dismiss` for no attempt: servers of every version answer it, without effect."""
        return {"op": "dismiss", "ask": NO_ASK, "key": ""}

    def ended(self) -> None:
        """Keep what the server told; the next one begins there."""
        self._abandon()

    def _abandon(self) -> None:
        if self._arriving is not None:
            self._arriving.forget()
            self._arriving = None

    def _repeat(self) -> None:
        for message, _ in self._asked.values():
            self.sibling.send(message)

    def _answered(self, message: dict[str, Any]) -> None:
        _, done = self._asked.get(message["ask"], (None, None))
        if done is None or done.done():
            return
        if message["reason"]:
            done.set_exception(Refusal(message["reason"], message["detail"]))
        else:
            done.set_result(None)

    # --- when agent and server ended together ---

    async def _take_up(self, before: Noted, living: Collection[str]) -> None:
        for tenant, device, limit in before.limits:
            if (tenant, device) not in self._copy.residents.limits:
                await self.limit_tenant(tenant, device, limit)
        missing = [each for each in before.entries if each.name not in self._copy.residents.served]
        for entry in missing:
            admitted = [each for name, each in before.admissions if name == entry.name]
            alive = [each for each in admitted if each.key in living]
            if alive:
                logger.warning("entry %s is lost until its attempts end", entry.name)
            with suppress(Refusal):
                await self._ask(
                    {
                        "op": "lose" if alive else "serve",
                        "entry": msgspec.to_builtins(entry),
                        "admissions": msgspec.to_builtins(alive),
                    }
                )

    def _note(self) -> bytes:
        """Return the content of the note; empty while there are no entries."""
        residents = self._copy.residents
        served = residents.served
        if not served:
            return b""
        admissions = [(name, each) for name in served for each in served[name].admissions.values()]
        limits = [(*place, limit) for place, limit in residents.limits.items()]
        entries = [each.entry for each in served.values()]
        return msgspec.json.encode(Noted(entries, admissions, limits))

    def _read_note(self) -> Noted:
        try:
            return _noted.decode(self._noted.path.read_bytes())
        except (FileNotFoundError, msgspec.DecodeError):
            return Noted()
