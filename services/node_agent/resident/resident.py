"""The resident data of one node: carries out the scheduler's orders, and gives replicas their part.

One thread works on it, so that neither heartbeats nor starts of other jobs wait for a disk. It
opens no path of a job's user: other threads do. The simulation has no resident data
(`directories.residence.NoResident`). Tests: tests/integration/test_resident_data.py,
tests/integration/test_resident_starts.py.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from msgspec.structs import replace

from libs.common.devices.means import lost
from libs.common.errors import Refused
from libs.common.life import kept_life
from libs.common.messages import KeepOrder, StartOrder
from libs.common.model import WEIGHTS as WEIGHTS_STAY
from libs.common.model import AttemptRef, Gpu
from libs.common.process.cancellation import Stopped, while_wanted
from libs.common.safety.folder_walk import remove_tree
from libs.common.state.kept import kept_key
from services.node_agent.core import actions as a
from services.node_agent.core.keeping import Keeps
from services.node_agent.core.keeping import content_of as content_kept
from services.node_agent.core.observations import KeepDone, KeepHeld, KeepSeen, Observation
from services.node_agent.core.state import State, key_of
from services.node_agent.directories import accounts
from services.node_agent.directories.accounts import Account
from services.node_agent.directories.job_ownership import CACHE
from services.node_agent.directories.protocol import Launch, Machine
from services.node_agent.machine import synced_file
from services.node_agent.resident import compile_folders, standbys
from services.node_agent.resident.artefacts import ArtefactStore
from services.node_agent.resident.device_orders import DeviceOrders
from services.node_agent.resident.device_weights import DeviceWeights
from services.node_agent.resident.engine import key_of_start
from services.node_agent.resident.engine_readers import EngineReaders
from services.node_agent.resident.from_peers import PeerWeights
from services.node_agent.resident.reports import held_order, seen_of
from services.node_agent.resident.standbys import Standbys
from services.node_agent.resident.trees import Differs, content_of
from services.node_agent.resident.weights import HostWeights

WEIGHTS: Final = "MUSTER_MODEL_WEIGHTS"
# Says for the next agent which compile products an attempt makes.
NOTE: Final = "artefact.json"
Made = TypeVar("Made")

logger = logging.getLogger(__name__)


class Resident:
    """The resident data below one agent's folders; `directories.residence.Residence`."""

    def __init__(
        self, machine: Machine, state_dir: Path, memory_dir: Path, artefact_bytes: int
    ) -> None:
        self.machine = machine
        self.jobs_dir = state_dir.resolve() / "jobs"
        self.artefacts = ArtefactStore(state_dir.resolve() / "artefacts", artefact_bytes)
        self.weights = HostWeights(memory_dir)
        # Filling memory may take minutes; a replica that starts must not wait for it.
        self.fills = ThreadPoolExecutor(1, "fills")
        self.thread = ThreadPoolExecutor(1, "artefacts")
        self.engines = EngineReaders()
        self.tell: Callable[[Observation], None] = lambda seen: None
        self.keeps: Callable[[], Keeps] = Keeps
        self.peers: PeerWeights | None = None
        self.standbys = Standbys(self.jobs_dir)
        self.on_devices = DeviceOrders(
            folder=state_dir.resolve() / "weights",
            sockets=memory_dir.with_name(f"muster-gms-{memory_dir.name.rpartition('-')[2]}"),
            ids_of=self._ids,
        )
        self.devices = DeviceWeights(self.on_devices, self.jobs_dir)
        # The copies of compile products for starts that are being prepared, by attempt.
        self._lending: dict[str, Future[dict[str, str]]] = {}
        self.removing = 0
        self.removed = asyncio.Event()
        self.removed.set()

    def isolation(self) -> dict[str, str]:
        """Return whether weights can stay on this node's devices, for NodeRegistered."""
        cleared = "the memory of devices is cleared between jobs (MUSTER_SCRUB)"
        return {WEIGHTS_STAY: lost(cleared if self.machine.scrub else "")}

    async def start(
        self,
        tell: Callable[[Observation], None],
        keeps: Callable[[], Keeps],
        living: Collection[str],
        inventory: Sequence[Gpu],
    ) -> None:
        """Find what earlier agents kept. `keeps` returns what is wanted now."""
        loop = asyncio.get_running_loop()
        self.tell, self.keeps = (lambda seen: _ignore(loop.call_soon_threadsafe(tell, seen))), keeps
        self.on_devices.start(self.tell, keeps, living, inventory)
        if self.peers is not None:
            self.peers.tell, self.peers.keeps = self.tell, keeps
        await self._run(self.artefacts.load)
        await self._run(self.weights.load)
        stores = ((kept_life.ARTEFACT, self.artefacts.known), (kept_life.HOST, self.weights.known))
        tell(KeepHeld(tuple(held_order(tier, *owner) for tier, known in stores for owner in known)))

    async def close(self) -> None:
        for threads in (self.fills, self.thread):
            threads.shutdown(wait=False, cancel_futures=True)
        self.engines.close()
        await self.on_devices.close()
        if self.peers is not None:
            self.peers.close()

    async def watch(self, state: Callable[[], State]) -> None:
        """Follow the standbys of this node's replicas, for ever."""
        while True:
            for seen in self.standbys.look(state()):
                self.tell(seen)
            await asyncio.sleep(self.standbys.pause_s(state()))

    async def carry_out(self, action: a.KeepData) -> None:
        """Bring one entry to its desired state, and report it."""
        order = action.order
        try:
            if action.remove:
                await self._remove(order)
            elif order.tier == kept_life.GPU:
                self._say(await self.on_devices.bring(order))
            elif order.tier == kept_life.HOST:
                loop = asyncio.get_running_loop()
                seen = await loop.run_in_executor(self.fills, self._bring, order)
                self._say(await self.peers.instead(order, seen, self.fills) if self.peers else seen)
            else:
                self._say(await self._run(self._bring, order))
        except Exception as error:  # a bug that one model meets must not end the agent
            logger.exception("the work on model %s, tier %s, failed", order.model, order.tier)
            if not action.remove:
                self._say(seen_of(order, kept_life.FAILED, detail=f"the agent failed: {error!a}"))
        finally:
            self.tell(KeepDone(order.model, order.tier))

    def _say(self, seen: KeepSeen | None) -> None:
        if seen is not None:
            self.tell(seen)

    async def _remove(self, order: KeepOrder) -> None:
        self.removing += 1
        self.removed.clear()
        try:
            if order.tier == kept_life.GPU:
                await self.on_devices.tidy()
            store = self.weights if order.tier == kept_life.HOST else self.artefacts
            if order.tier in (kept_life.HOST, kept_life.ARTEFACT):
                await self._run(store.remove, order.tenant, order.model)
        finally:
            self.removing -= 1
            if not self.removing:
                self.removed.set()

    def _bring(self, order: KeepOrder) -> KeepSeen | None:
        """Work on one entry in the thread; return what became of it, None if it is as it was."""
        try:
            if order.tier == kept_life.ARTEFACT:
                return self._artefact(order)
            return self._host(order) if order.tier == kept_life.HOST else None
        except (Refused, Differs) as error:
            differs = isinstance(error, Differs)
            return seen_of(order, kept_life.FAILED, detail=str(error), differs=differs)
        except OSError as error:
            return seen_of(order, kept_life.FAILED, detail=error.strerror or str(error))

    def _artefact(self, order: KeepOrder) -> KeepSeen | None:
        found = self.artefacts.known.get((order.tenant, order.model))
        if found is None:
            return (
                seen_of(order, kept_life.FAILED, detail="the node has lost its compile products")
                if order.state == kept_life.READY
                else None
            )
        return seen_of(
            order,
            kept_life.READY,
            size_bytes=found.size_bytes,
            content=found.content,
            restore_ms=found.saves_ms,
        )

    def _host(self, order: KeepOrder) -> KeepSeen:
        ids = self._ids(order)
        if not order.granted:
            size = self.weights.measure(order, ids)
            return seen_of(order, kept_life.MEASURED, size_bytes=size)
        began_ns = time.monotonic_ns()
        filled = self.weights.verified(order)
        took_ms = 0
        if filled is None:
            if order.state == kept_life.READY:
                self.tell(seen_of(order, kept_life.FILLING, detail="the node lost it"))
            filled = self.weights.fill(order, ids)
            took_ms = max(1, (time.monotonic_ns() - began_ns) // 1_000_000)
        return seen_of(
            order,
            kept_life.READY,
            size_bytes=filled.size_bytes,
            content=content_of(filled.files),
            files=filled.files,
            restore_ms=took_ms,
        )

    def _ids(self, order: KeepOrder) -> Sequence[int]:
        account = self._account(order)
        return account.ids if account is not None else ()

    def _account(self, order: KeepOrder) -> Account | None:
        """Return the user that reads the weights; None for the agent's own. Raises Refused."""
        if accounts.shares_agent(self.machine.users, order.tenant, order.user):
            return None
        return accounts.account_of(
            self.machine.users, self.machine.numbers, order.tenant, order.user
        )

    async def prepare(
        self,
        launch: Launch,
        order: StartOrder,
        gpus: Sequence[Gpu],
        drivers: Mapping[str, str],
        wanted: Callable[[], bool],
    ) -> Launch:
        """Return the launch of a replica with its part of the resident data.

        Waits for removals: a job gets the memory that was taken from resident data. Raises Refused
        if memory of its devices stays, or if the attempt is not `wanted` any more; then nothing
        writes into its directory any more.
        """
        key = key_of(launch.ref)
        try:
            return await while_wanted(self._prepared(launch, order, gpus, drivers), wanted)
        except Stopped:
            copy = self._lending.get(key)
            if copy is not None and not copy.cancel():  # it has begun
                with suppress(OSError):
                    await asyncio.wrap_future(copy)
            raise Refused(f"{key} was stopped before it started") from None
        finally:
            self._lending.pop(key, None)

    async def _prepared(
        self,
        launch: Launch,
        order: StartOrder,
        gpus: Sequence[Gpu],
        drivers: Mapping[str, str],
    ) -> Launch:
        await self.removed.wait()
        read = partial(key_of_start, launch, order, gpus, drivers)
        start = partial(self.engines.read, order.tenant, read)
        env = await self.devices.prepare(launch, order, gpus, start)
        serve = order.spec.serve
        if serve is None or order.spec.image:
            return launch
        if serve.standby:
            folder = str(self.jobs_dir / key_of(launch.ref))
            has_account, address = launch.account is not None, self.machine.address
            argv = standbys.argv_of(order, folder, has_account, address)
            launch = replace(launch, argv=argv)
        host = self._wanted(serve.model, kept_life.HOST)
        if host is not None and host.tenant == order.tenant:
            path = self.weights.path_of(order.tenant, serve.model)
            env |= {WEIGHTS: path} if path else {}
        kept = self._wanted(serve.model, kept_life.ARTEFACT)
        if kept is not None and kept.tenant == order.tenant:
            try:
                key = await self.engines.read(order.tenant, partial(read, kept.weights))
            except TimeoutError as error:
                logger.warning("%s starts without compile products: %s", order.job_id, error)
            else:
                copy = self.thread.submit(self._lend, launch, key, kept)
                self._lending[key_of(launch.ref)] = copy
                lent = await asyncio.wrap_future(copy)
                env |= lent
        return replace(launch, env={**env, **launch.env}) if env else launch

    def _lend(self, launch: Launch, key: str, kept: KeepOrder) -> dict[str, str]:
        """Give the replica its own copy of the compile products; return the variables."""
        folder = self.jobs_dir / key_of(launch.ref)
        folder.mkdir(mode=0o700, exist_ok=True)
        cache = folder / CACHE
        cache.mkdir(mode=0o700, exist_ok=True)
        warm, content = False, content_kept(self.keeps(), kept)
        try:
            warm = self.artefacts.lend(kept.tenant, kept.model, key, content, cache)
        except Differs as error:
            self.tell(seen_of(kept, kept_life.FAILED, detail=f"refused before use: {error}"))
        except OSError as error:
            logger.warning("%s starts without compile products: %s", key_of(launch.ref), error)
        note = {"model": kept.model, "tenant": kept.tenant, "key": key, "warm": warm}
        synced_file.replace(
            folder / NOTE,
            json.dumps({**note, "ids": launch.account.ids if launch.account else []}).encode(),
        )
        return compile_folders.made_in(cache)

    async def let_go(self, key: str) -> str:
        """End an attempt's access to weights; return why that failed, empty if it did not."""
        return await self.devices.let_go(key)

    def device_bytes(self) -> dict[tuple[str, str], int]:
        """Return the bytes of weights by device and model."""
        return self.devices.servers.bytes_by_model()

    def processes(self) -> Collection[int]:
        """Return processes that hold devices and that no job left."""
        return self.devices.servers.processes()

    async def finished(self, ref: AttemptRef, healthy: bool, ready_ms: int) -> None:
        """Store what a replica compiled, if it finished healthy; remove its copy in any case."""
        key = key_of(ref)
        if self._has_note(key):
            await self._run(self._save, self.jobs_dir / key, healthy, ready_ms)

    def _has_note(self, key: str) -> bool:
        """Return whether the attempt got a copy of compile products. Most jobs got none."""
        return os.path.exists(f"{self.jobs_dir}/{key}/{NOTE}")

    def _save(self, folder: Path, healthy: bool, ready_ms: int) -> None:
        try:
            note = json.loads((folder / NOTE).read_bytes())
            kept = self._wanted(note["model"], kept_life.ARTEFACT)
            if not healthy or kept is None or kept.tenant != note["tenant"]:
                return
            made, out = self.artefacts.save(
                kept.tenant, kept.model, note["key"], str(folder / CACHE), note["ids"], ready_ms
            )
        except (Differs, Refused, OSError, ValueError, KeyError) as error:
            if (kept := self._wanted(_model_in(folder), kept_life.ARTEFACT)) is not None:
                self.tell(seen_of(kept, kept_life.FAILED, detail=str(error)))
            return
        finally:
            remove_tree(folder / CACHE)
        for each in out:
            if (gone := self._wanted(each.model, kept_life.ARTEFACT)) is not None:
                why = f"its bytes were needed for {kept.model}, which saves more time per byte"
                self.tell(seen_of(gone, kept_life.FAILED, detail=why))
        if made is not None:
            self.tell(
                seen_of(
                    kept,
                    kept_life.READY,
                    size_bytes=made.size_bytes,
                    content=made.content,
                    restore_ms=made.saves_ms,
                )
            )

    def _wanted(self, model: str, tier: str) -> KeepOrder | None:
        return self.keeps().wanted.get(kept_key(model, tier))

    async def _run(self, work: Callable[..., Made], *arguments: object) -> Made:
        return await asyncio.get_running_loop().run_in_executor(self.thread, work, *arguments)


def _ignore(handle: object) -> None:
    """Drop the handle of a call that another thread asked for."""


def _model_in(folder: Path) -> str:
    try:
        return str(json.loads((folder / NOTE).read_bytes()).get("model", ""))
    except (OSError, ValueError):
        return ""
