"""The orders to keep weights on this node's devices (tier gpu), and the reports about them.

An entry belongs to one placement of the request. Its files are read and hashed before replicas are
admitted to it (`device_weights.py`), and its memory is freed when it is not wanted any more. Tests:
tests/integration/test_device_weights.py.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from libs.common.errors import Refused
from libs.common.life import kept_life
from libs.common.messages import KeepOrder
from libs.common.model import Gpu
from libs.common.state.kept import kept_key
from services.node_agent.core.keeping import Keeps
from services.node_agent.core.observations import KeepHeld, KeepSeen, Observation
from services.node_agent.memory.gms import state as s
from services.node_agent.memory.gms.listing import Resident
from services.node_agent.memory.grants import Refusal
from services.node_agent.resident.checkpoint import Checkpoints
from services.node_agent.resident.checkpoint_readers import CheckpointReaders
from services.node_agent.resident.reports import held_order, seen_of
from services.node_agent.resident.trees import Differs, content_of
from services.node_agent.resident.weight_servers import Held, WeightServers

HASHES: Final = "checkpoints.json"
DIGITS: Final = 16
FAULTS: Final = (Differs, Refused, Refusal, OSError, TimeoutError)

Placement = tuple[int, int]


class Verified(NamedTuple):
    """The files of a placement's checkpoint with their SHA-256."""

    placement: Placement
    files: dict[str, str]


class DeviceOrders:
    """The orders of one agent. `ids_of` returns the user that reads the files of an order."""

    def __init__(
        self, folder: Path, sockets: Path, ids_of: Callable[[KeepOrder], Sequence[int]]
    ) -> None:
        self.sockets, self.ids_of = sockets, ids_of
        self.servers = WeightServers(folder, self._changed, self._found)
        self.checkpoints = Checkpoints(folder / HASHES)
        self.readers = CheckpointReaders()
        self._closed = False
        self.verified: dict[str, Verified] = {}
        self.failed: dict[str, Placement] = {}
        self.tell: Callable[[Observation], None] = lambda seen: None
        self.keeps: Callable[[], Keeps] = Keeps
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
        self._closed = True
        self.readers.close()
        await self.servers.close()
        with suppress(OSError):  # entries have their sockets there
            os.rmdir(self.sockets)

    async def bring(self, order: KeepOrder) -> KeepSeen | None:
        """Read the files of an order that has its bytes, so that replicas can be admitted."""
        await self.servers.answer()
        await self.tidy()
        if not order.gpu_bytes:
            return None
        key = kept_key(order.model, order.tier)
        try:
            files = await self.read(order)
        except FAULTS as error:
            return await self.failure(order, words_of(error))
        self.verified[key] = Verified(placement_of(order), files)
        self.failed.pop(key, None)
        if key not in self._said and order.state == kept_life.READY:
            self._said[key] = (*placement_of(order), order.state, self._size(order))
        return self._report(order)

    async def read(self, order: KeepOrder) -> dict[str, str]:
        """Return the files of an order's checkpoint with their SHA-256. Raises one of FAULTS.

        Reading ends when the order is not wanted any more, or when this call is cancelled.
        """
        over = threading.Event()

        def work() -> dict[str, str]:
            return self.checkpoints.read(
                order, self.ids_of(order), lambda: not over.is_set() and self._goes_on(order)
            )

        try:
            return await self.readers.read(order.tenant, work)
        finally:
            over.set()

    def _goes_on(self, order: KeepOrder) -> bool:
        """Return whether the files of an order are still to be read. Called in its thread."""
        now = self.keeps().wanted.get(kept_key(order.model, order.tier))
        return not self._closed and now is not None and placement_of(now) == placement_of(order)

    async def failure(self, order: KeepOrder, detail: str) -> KeepSeen:
        """Free what a failed entry has; attempts that use it keep it until they end."""
        key = kept_key(order.model, order.tier)
        self.failed[key] = placement_of(order)
        self.verified.pop(key, None)
        self._said.pop(key, None)
        await self.tidy()
        return seen_of(order, kept_life.FAILED, detail=detail)

    async def tidy(self) -> None:
        """Free the memory of all entries that are neither wanted nor used by an attempt."""
        for held in list(self.servers.held()):
            if not held.entry.attempts and not self._is_wanted(held):
                await self.drop(held)

    def _is_wanted(self, held: Held) -> bool:
        keeps, key = self.keeps(), kept_key(held.entry.model, kept_life.GPU)
        order = keeps.wanted.get(key)
        if order is None or order.tenant != held.entry.tenant:
            return not keeps.seq  # the list is not known yet
        return (
            held.uuid in order.gpu_bytes
            and self.failed.get(key) != placement_of(order)
            and held.entry.name.startswith(prefix_of(order))
        )

    async def drop(self, held: Held) -> None:
        """Free an entry that no attempt uses. One that is lost stays until its attempts end."""
        with suppress(Refusal, TimeoutError):
            await held.server.drop(held.entry.name, force=True)
            self._took_ms.pop(held.entry.name, None)
            with suppress(OSError):  # other devices of the replica have their sockets there
                os.rmdir(self.folder_of(held.entry.name))

    def folder_of(self, name: str) -> Path:
        """Return the folder of the sockets of all devices of one way to start a replica."""
        way = name.rsplit("/", 2)[0]
        return self.sockets / hashlib.sha256(way.encode()).hexdigest()[:DIGITS]

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
        if verified is None or verified.placement != placement_of(order):
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


def placement_of(order: KeepOrder) -> Placement:
    """Return the placement that an order belongs to."""
    return order.request, order.number


def prefix_of(order: KeepOrder) -> str:
    """Return the beginning of the names of this placement's entries."""
    return f"{order.model}/{order.request}.{order.number}/"


def words_of(error: Exception) -> str:
    """Return why something failed."""
    return str(error) or "the weight server does not answer"
