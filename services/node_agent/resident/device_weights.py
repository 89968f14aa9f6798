"""The attempts that use weights which stay on this node's devices between replicas (tier gpu).

An entry belongs to one placement of the request, to one way of starting the engine, and to the rank
of its device in the replica: other weights of the same shape never fit. An attempt is admitted
before it starts, if the files of its checkpoint are the recorded ones; otherwise it starts without.
Before a job starts on a device, weights that no attempt uses there are freed. The orders and
reports are `device_orders.py`. Tests: tests/integration/test_device_weights.py.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from libs.common.errors import Refused
from libs.common.life import kept_life
from libs.common.messages import KeepOrder, StartOrder
from libs.common.model import Gpu, GpuId
from libs.common.state.kept import kept_key
from services.node_agent.core.state import key_of
from services.node_agent.directories.protocol import Launch
from services.node_agent.memory.gms import state as s
from services.node_agent.memory.gms.resident_weights import socket_name
from services.node_agent.memory.grants import Refusal
from services.node_agent.resident.checkpoint import check
from services.node_agent.resident.device_orders import (
    DIGITS,
    FAULTS,
    DeviceOrders,
    placement_of,
    prefix_of,
    words_of,
)
from services.node_agent.resident.weight_servers import Held
from services.node_agent.resident.weights import own_folder

SOCKETS: Final = "GMS_SOCKET_DIR"
TAG: Final = "weights"
# How long a replica waits until its devices have bytes for weights, and how often it looks.
GRANT_S: Final = 10.0
LOOK_S: Final = 0.05
# The engine's files could not be read in time.
UNREAD: Final = "unread"
# Reasons for which one attempt must load its own weights; those of the node stay as they are.
LOADS_ITSELF: Final = ("lost", "attempts", "other", UNREAD)

SILENT: Final = "resident weights: the weight server does not answer"

logger = logging.getLogger(__name__)


class DeviceWeights:
    """The attempts of one agent that use weights of `orders`."""

    def __init__(self, orders: DeviceOrders, jobs_dir: Path) -> None:
        self.orders, self.jobs_dir = orders, jobs_dir
        self.servers = orders.servers
        self._entering = asyncio.Lock()
        # Attempts for which admission was requested. A stopped start does not receive the answer.
        self._asked: set[str] = set()

    async def prepare(
        self,
        launch: Launch,
        order: StartOrder,
        gpus: Sequence[Gpu],
        start: Callable[[], Awaitable[str]],
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
            logger.warning("%s loads its own weights: %s", key_of(launch.ref), words_of(error))
            if not isinstance(error, Refusal) or error.reason not in LOADS_ITSELF:
                self.orders.tell(await self.orders.failure(kept, words_of(error)))
            return {}

    async def _make_room(self, order: StartOrder) -> None:
        """Free the weights of other models that no attempt uses on the attempt's devices."""
        for held in self._in_the_way(order):
            await self.orders.drop(held)
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
            kept = self.orders.keeps().wanted.get(key)
            covers = kept is not None and _covers(kept, order)
            if kept is not None and covers:
                verified = self.orders.verified.get(key)
                if verified is not None and verified.placement == placement_of(kept):
                    return kept
                if self.orders.failed.get(key) == placement_of(kept):
                    return None
            if time.monotonic() > until and not (covers and key in self.orders.keeps().busy):
                logger.warning("%s loads its own weights: no bytes are granted", order.job_id)
                return None
            await asyncio.sleep(LOOK_S)

    async def _admit(
        self,
        launch: Launch,
        order: StartOrder,
        kept: KeepOrder,
        start: Callable[[], Awaitable[str]],
    ) -> dict[str, str]:
        """Admit an attempt to the entries of its devices. Raises one of FAULTS."""
        if order.spec.image:
            raise Refused("replicas in containers cannot map weights of the node")
        if any(hold.mig_profile for hold in order.gpus):
            raise Refused("MIG instances cannot map weights of the node")
        files = await self.orders.read(kept)
        check(files, self.orders.verified[kept_key(kept.model, kept.tier)].files)
        content = tuple(sorted(files.values()))
        try:
            way = (await start())[:DIGITS]
        except TimeoutError as error:
            raise Refusal(UNREAD, str(error)) from None
        key, folder = key_of(launch.ref), self.orders.sockets
        self._asked.add(key)
        admission = s.Admission(key, kept.tenant, f"{self.jobs_dir}/{key}", content)
        for rank, hold in enumerate(order.gpus):
            device = self.servers.device(hold.uuid)
            name = f"{prefix_of(kept)}{way}/{rank}-{len(order.gpus)}/{device.number}"
            folder = self.orders.folder_of(name)
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
        server = await self.servers.of(self.servers.device(uuid).driver)
        for held in list(self.servers.held()):
            other = held.entry
            if (held.uuid, other.model) != (uuid, entry.model) or other.name == entry.name:
                continue
            if other.attempts:
                raise Refusal("other", f"GPU {uuid} has weights of {', '.join(other.attempts)}")
            await self.orders.drop(held)
        own_folder(self.orders.sockets)
        Path(entry.socket).parent.mkdir(mode=0o711, exist_ok=True)
        await server.serve(entry)
        limits = [
            each.limit
            for each in server.entries()
            if (each.tenant, each.device) == (entry.tenant, entry.device)
        ]
        await server.limit_tenant(entry.tenant, entry.device, sum(limits))
        await server.admit(entry.name, admission)

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
                if key in self._asked or any(key in each.attempts for each in server.entries()):
                    await server.dismiss(key)
        except TimeoutError:
            return SILENT
        self._asked.discard(key)
        await self.orders.tidy()
        return ""


def _covers(kept: KeepOrder, order: StartOrder) -> bool:
    """Return whether all devices of an attempt have bytes for its model's weights."""
    uuids = {hold.uuid for hold in order.gpus}
    return kept.tenant == order.tenant and uuids <= kept.gpu_bytes.keys()
