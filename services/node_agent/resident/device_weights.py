"""Weights that stay on this node's devices between the replicas of a model (tier gpu).

An entry belongs to one placement of the request, to one way of starting the engine, and to the rank
of its device in the replica: other weights of the same shape never fit. An attempt is admitted
before it starts, if the files of its checkpoint are the recorded ones; otherwise it starts without.
Before a job starts on a device, weights that no attempt uses there are freed. Tests:
tests/integration/test_device_weights.py.
"""

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from libs.common.errors import Refused
from libs.common.life import kept_life
from libs.common.messages import KeepOrder, StartOrder
from libs.common.model import Gpu, GpuId
from libs.common.state.kept import kept_key
from services.node_agent.core.keeping import Keeps
from services.node_agent.core.observations import KeepHeld, KeepSeen, Observation
from services.node_agent.core.state import key_of
from services.node_agent.directories.protocol import Launch
from services.node_agent.memory.gms import state as s
from services.node_agent.memory.gms.listing import Resident
from services.node_agent.memory.gms.resident_weights import socket_name
from services.node_agent.memory.grants import Refusal
from services.node_agent.resident.checkpoint import Checkpoints, check
from services.node_agent.resident.reports import held_order, seen_of
from services.node_agent.resident.trees import Differs, content_of
from services.node_agent.resident.weight_servers import Held, WeightServers
from services.node_agent.resident.weights import own_folder

SOCKETS: Final = "GMS_SOCKET_DIR"
TAG: Final = "weights"
HASHES: Final = "checkpoints.json"
DIGITS: Final = 16
# How long a replica waits until its devices have bytes for weights, and how often it looks.
GRANT_S: Final = 10.0
LOOK_S: Final = 0.05
# Reasons for which one attempt must load its own weights; those of the node stay as they are.
LOADS_ITSELF: Final = ("lost", "attempts", "other")
FAULTS: Final = (Differs, Refused, Refusal, OSError, TimeoutError)

SILENT: Final = "resident weights: the weight server does not answer"

logger = logging.getLogger(__name__)

Placement = tuple[int, int]


class Verified(NamedTuple):
    """The files of a placement's checkpoint with their SHA-256."""

    placement: Placement
    files: dict[str, str]


class DeviceWeights:
    """The weights on the devices of one agent.

    `ids_of` returns the user that reads the files of an order.
    """

    def __init__(
        self,
        folder: Path,
        sockets: Path,
        jobs_dir: Path,
        ids_of: Callable[[KeepOrder], Sequence[int]],
    ) -> None:
        self.sockets, self.jobs_dir, self.ids_of = sockets, jobs_dir, ids_of
        self.servers = WeightServers(folder, self._changed, self._found)
        self.checkpoints = Checkpoints(folder / HASHES)
        self.thread = ThreadPoolExecutor(1, "checkpoints")
        self.verified: dict[str, Verified] = {}
        self.failed: dict[str, Placement] = {}
        self.tell: Callable[[Observation], None] = lambda seen: None
        self.keeps: Callable[[], Keeps] = Keeps
        self._entering = asyncio.Lock()
        self._said: dict[str, tuple[int, int, str, int]] = {}
        self._writing: dict[str, int] = {}
        self._took_ms: dict[str, int] = {}

    def start(
        self,
        tell: Callable[[Observation], None],
        keeps: Callable[[], Keeps],
        living: Collection[str],
        inventory: Sequence[Gpu],
    ) -> None:
        """Find what earlier agents left; `living` are the attempts that still run."""
        self.tell, self.keeps = tell, keeps
        self.servers.adopt(living, inventory)

    def _found(self, entries: Sequence[Resident]) -> None:
        owners = dict.fromkeys((each.tenant, each.model) for each in entries)
        if owners:
            self.tell(KeepHeld(tuple(held_order(kept_life.GPU, *owner) for owner in owners)))

    async def close(self) -> None:
        self.thread.shutdown(wait=False, cancel_futures=True)
        await self.servers.close()
        with suppress(OSError):  # entries have their sockets there
            os.rmdir(self.sockets)

    # --- orders of the scheduler ---

    async def bring(self, order: KeepOrder) -> KeepSeen | None:
        """Read the files of an order that has its bytes, so that replicas can be admitted."""
        await self.servers.answer()
        await self.tidy()
        if not order.gpu_bytes:
            return None
        key = kept_key(order.model, order.tier)
        try:
            files = await self._read(order)
        except FAULTS as error:
            return await self._failure(order, _words(error))
        self.verified[key] = Verified(_placement(order), files)
        self.failed.pop(key, None)
        if key not in self._said and order.state == kept_life.READY:
            self._said[key] = (*_placement(order), order.state, self._size(order))
        return self._report(order)

    async def _read(self, order: KeepOrder) -> dict[str, str]:
        return await asyncio.get_running_loop().run_in_executor(
            self.thread, lambda: self.checkpoints.read(order, self.ids_of(order))
        )

    async def _failure(self, order: KeepOrder, detail: str) -> KeepSeen:
        """Free what a failed entry has; attempts that use it keep it until they end."""
        key = kept_key(order.model, order.tier)
        self.failed[key] = _placement(order)
        self.verified.pop(key, None)
        self._said.pop(key, None)
        await self.tidy()
        return seen_of(order, kept_life.FAILED, detail=detail)

    async def tidy(self) -> None:
        """Free the memory of all entries that are neither wanted nor used by an attempt."""
        for held in list(self.servers.held()):
            if not held.entry.attempts and not self._is_wanted(held):
                await self._drop(held)

    def _is_wanted(self, held: Held) -> bool:
        keeps, key = self.keeps(), kept_key(held.entry.model, kept_life.GPU)
        order = keeps.wanted.get(key)
        if order is None or order.tenant != held.entry.tenant:
            return not keeps.seq  # the list is not known yet
        return (
            held.uuid in order.gpu_bytes
            and self.failed.get(key) != _placement(order)
            and held.entry.name.startswith(_prefix(order))
        )

    async def _drop(self, held: Held) -> None:
        """Free an entry that no attempt uses. One that is lost stays until its attempts end."""
        with suppress(Refusal, TimeoutError):
            await held.server.drop(held.entry.name, force=True)
            self._took_ms.pop(held.entry.name, None)
            with suppress(OSError):  # other devices of the replica have their sockets there
                os.rmdir(self._folder_of(held.entry.name))

    # --- attempts ---

    async def prepare(
        self, launch: Launch, order: StartOrder, gpus: Sequence[Gpu], start: Callable[[], str]
    ) -> dict[str, str]:
        """Free the attempt's devices for it, and return the variables of a replica with weights.

        `start` computes the way in which its engine starts. Raises Refused if memory stays.
        """
        self.servers.use(gpus)
        if self.servers.servers:
            await self.servers.answer()
            async with self._entering:
                await self._make_room(order)
        serve = order.spec.serve
        if serve is None or not serve.device_weights or not order.gpus:
            return {}
        kept = await self._granted(order, serve.model)
        if kept is None:
            return {}
        try:
            return await self._admit(launch, order, kept, start)
        except FAULTS as error:
            await self.let_go(key_of(launch.ref))
            logger.warning("%s loads its own weights: %s", key_of(launch.ref), _words(error))
            if not isinstance(error, Refusal) or error.reason not in LOADS_ITSELF:
                self.tell(await self._failure(kept, _words(error)))
            return {}

    async def _make_room(self, order: StartOrder) -> None:
        """Free the weights of other models that no attempt uses on the attempt's devices."""
        for held in self._in_the_way(order):
            await self._drop(held)
        for held in self._in_the_way(order):
            raise Refused(
                f"GPU {held.uuid} still has weights of {held.entry.model}: the weight server does "
                "not answer"
            )

    def _in_the_way(self, order: StartOrder) -> list[Held]:
        serve, uuids = order.spec.serve, {hold.uuid for hold in order.gpus}
        own = (serve.model, order.tenant) if serve is not None else ("", "")
        return [
            held
            for held in self.servers.held()
            if held.uuid in uuids
            and not held.entry.attempts
            and (held.entry.model, held.entry.tenant) != own
        ]

    async def _granted(self, order: StartOrder, model: str) -> KeepOrder | None:
        """Return the order when the attempt's devices have bytes and its files were read."""
        key, until = kept_key(model, kept_life.GPU), time.monotonic() + GRANT_S
        while True:
            kept = self.keeps().wanted.get(key)
            covers = kept is not None and _covers(kept, order)
            if kept is not None and covers:
                verified = self.verified.get(key)
                if verified is not None and verified.placement == _placement(kept):
                    return kept
                if self.failed.get(key) == _placement(kept):
                    return None
            if time.monotonic() > until and not (covers and key in self.keeps().busy):
                logger.warning("%s loads its own weights: no bytes are granted", order.job_id)
                return None
            await asyncio.sleep(LOOK_S)

    async def _admit(
        self, launch: Launch, order: StartOrder, kept: KeepOrder, start: Callable[[], str]
    ) -> dict[str, str]:
        """Admit an attempt to the entries of its devices. Raises one of FAULTS."""
        if order.spec.image:
            raise Refused("replicas in containers cannot map weights of the node")
        if any(hold.mig_profile for hold in order.gpus):
            raise Refused("MIG instances cannot map weights of the node")
        files = await self._read(kept)
        check(files, self.verified[kept_key(kept.model, kept.tier)].files)
        content = tuple(sorted(files.values()))
        way = (await asyncio.to_thread(start))[:DIGITS]
        key, folder = key_of(launch.ref), self.sockets
        admission = s.Admission(key, kept.tenant, f"{self.jobs_dir}/{key}", content)
        for rank, hold in enumerate(order.gpus):
            device = self.servers.devices[hold.uuid]
            name = f"{_prefix(kept)}{way}/{rank}-{len(order.gpus)}/{device.number}"
            folder = self._folder_of(name)
            entry = s.Entry(
                name=name,
                tenant=kept.tenant,
                model=kept.model,
                tag=TAG,
                device=device.number,
                limit=kept.gpu_bytes[hold.uuid],
                socket=f"{folder}/{socket_name(hold.uuid, TAG)}",
                content=content,
            )
            async with self._entering:
                await self._enter(entry, admission, hold.uuid)
        return {SOCKETS: str(folder)}

    async def _enter(self, entry: s.Entry, admission: s.Admission, uuid: GpuId) -> None:
        """Serve an entry, unless another start of the model uses the device, and admit to it."""
        server = await self.servers.of(self.servers.devices[uuid].driver)
        for held in list(self.servers.held()):
            other = held.entry
            if (held.uuid, other.model) != (uuid, entry.model) or other.name == entry.name:
                continue
            if other.attempts:
                raise Refusal("other", f"GPU {uuid} has weights of {', '.join(other.attempts)}")
            await self._drop(held)
        own_folder(self.sockets)
        Path(entry.socket).parent.mkdir(mode=0o711, exist_ok=True)
        await server.serve(entry)
        limits = [
            each.limit
            for each in server.entries()
            if (each.tenant, each.device) == (entry.tenant, entry.device)
        ]
        await server.limit_tenant(entry.tenant, entry.device, sum(limits))
        await server.admit(entry.name, admission)

    def _folder_of(self, name: str) -> Path:
        """Return the folder of the sockets of all devices of one way to start a replica."""
        way = name.rsplit("/", 2)[0]
        return self.sockets / hashlib.sha256(way.encode()).hexdigest()[:DIGITS]

    async def let_go(self, key: str) -> str:
        """End an attempt's access; return why that failed, empty if it did not.

        Entries that are not wanted any more go with their last attempt.
        """
        if not self.servers.servers:
            return ""
        if not await self.servers.answer() and self.servers.may_know(key):
            return SILENT
        try:
            for server in list(self.servers.servers.values()):
                if any(key in each.attempts for each in server.entries()):
                    await server.dismiss(key)
        except TimeoutError:
            return SILENT
        await self.tidy()
        return ""

    # --- reports ---

    def _changed(self, change: s.Change) -> None:
        """Report an entry whose weights were published or are gone."""
        match change:
            case s.Opened(session) if session.lock == s.Lock.RW:
                self._writing[session.entry] = time.monotonic_ns()
                return
            case s.Committed(name, _, _):
                began_ns = self._writing.pop(name, time.monotonic_ns())
                self._took_ms[name] = max(1, (time.monotonic_ns() - began_ns) // 1_000_000)
            case s.Cleared(name) | s.Dropped(name):
                pass
            case _:
                return
        order = self.keeps().wanted.get(kept_key(name.split("/")[0], kept_life.GPU))
        if order is not None and (seen := self._report(order)) is not None:
            self.tell(seen)

    def _of(self, order: KeepOrder) -> list[Held]:
        return [
            held
            for held in self.servers.held()
            if held.entry.model == order.model and self._is_wanted(held)
        ]

    def _size(self, order: KeepOrder) -> int:
        return sum(held.entry.bytes for held in self._of(order))

    def _report(self, order: KeepOrder) -> KeepSeen | None:
        """Return the report of an order if it differs from the last one.

        The entry is ready when all its devices have published weights.
        """
        key = kept_key(order.model, order.tier)
        verified, before = self.verified.get(key), self._said.get(key)
        if verified is None or verified.placement != _placement(order):
            return None
        found = self._of(order)
        ready = {held.uuid for held in found if held.entry.layout} >= order.gpu_bytes.keys()
        state = kept_life.READY if ready else kept_life.FILLING
        now = (*verified.placement, state, self._size(order) if ready else 0)
        was_ready = before is not None and before[:3] == (*verified.placement, kept_life.READY)
        if now == before or not (ready or was_ready):
            return None
        self._said[key] = now
        took_ms = [self._took_ms.get(held.entry.name, 0) for held in found]
        return seen_of(
            order,
            state,
            size_bytes=now[-1],
            content=content_of(verified.files),
            files=verified.files,
            restore_ms=max(took_ms, default=0),
        )


def _covers(kept: KeepOrder, order: StartOrder) -> bool:
    """Return whether all devices of an attempt have bytes for its model's weights."""
    uuids = {hold.uuid for hold in order.gpus}
    return kept.tenant == order.tenant and uuids <= kept.gpu_bytes.keys()


def _placement(order: KeepOrder) -> Placement:
    return order.request, order.number


def _prefix(order: KeepOrder) -> str:
    """Return the beginning of the names of this placement's entries."""
    return f"{order.model}/{order.request}.{order.number}/"


def _words(error: Exception) -> str:
    return str(error) or "the weight server does not answer"
