"""The memory pools of one agent's jobs: an attempt is admitted to the broker at its start, with its
limits and a token, and released by the release check.

The broker starts with the first job that has a pool. The token reaches the job by its environment
only; the broker knows its SHA-256. Tests: tests/integration/test_pools.py.
"""

import asyncio
import hashlib
import logging
import os
import secrets
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from libs.common.devices.means import ENFORCED
from libs.common.errors import Refused
from libs.common.messages import StartOrder
from libs.common.messages.memory_messages import MemoryReport
from libs.common.model import POOLS, Gpu
from libs.common.subjects import ask_node
from libs.common.transport.bus import Bus
from services.node_agent.core.state import key_of
from services.node_agent.directories.job_ownership import make_passable
from services.node_agent.directories.protocol import Launch
from services.node_agent.drivers.sysfs import Numa
from services.node_agent.memory.device_numbers import DeviceNumbers
from services.node_agent.memory.grants import HOST, Attempt
from services.node_agent.memory.keeper import ATTEMPTS, DEVICE_AGAIN_S, RELEASE_S, Keeper
from services.node_agent.memory.node_memory import host
from services.node_agent.memory.report import report

FOLDER: Final = "memory"
SOCKET: Final = "MUSTER_MEMORY_SOCKET"
TOKEN: Final = "MUSTER_MEMORY_TOKEN"
TOKEN_BYTES: Final = 32
RETURNED: Final = "returned"
NO_ANSWER: Final = "not known: the memory broker does not answer"

_encode = msgspec.msgpack.Encoder().encode

logger = logging.getLogger(__name__)


class Pools:
    """The pools of one agent. Without a state directory it gives none (the simulation).

    `host_bytes` is what jobs may use of the host. `numas`: see `sysfs.numas`.
    """

    def __init__(
        self,
        state_dir: Path | None = None,
        host_bytes: int = 0,
        numas: Mapping[int, Numa] | None = None,
    ) -> None:
        self.state_dir = state_dir
        self.numas = numas or {}
        self.keeper: Keeper | None = None
        self.numbers = DeviceNumbers(state_dir / FOLDER if state_dir is not None else None)
        if state_dir is not None:
            self.keeper = Keeper(state_dir / FOLDER, [host(host_bytes)])
        # Attempts whose memory came back: a release check may be repeated before it is clean.
        self.returned: set[str] = set()
        self._opening: asyncio.Task[None] | None = None
        # The attempts of an earlier agent that have pools. The others never wait for the broker.
        self._noted: Collection[str] = ()

    def adopt(self, keys: Collection[str], inventory: Sequence[Gpu]) -> None:
        """Connect to the broker of an earlier agent, if there was one; `keys` are the attempts
        that still run.
        """
        if self.keeper is None or not (self.keeper.folder / ATTEMPTS).exists():
            return
        self._noted = self.keeper.noted().keys()
        self.keeper.use(self.numbers.devices_of(inventory))
        self._opening = asyncio.create_task(self.keeper.open(list(keys)))

    def isolation(self) -> dict[str, str]:
        """Return whether this node gives pools, for NodeRegistered."""
        return {POOLS: ENFORCED}

    async def hold(self, launch: Launch, order: StartOrder, inventory: Sequence[Gpu]) -> Launch:
        """Return the launch with access to its pools. Raises Refused if a device gives none."""
        if not order.spec.pools_on_node_bytes:
            return launch
        if self.keeper is None or self.state_dir is None:
            raise Refused("pool: this agent has no memory broker")
        if not await self._opened(DEVICE_AGAIN_S):
            raise Refused(
                f"pool: the memory broker does not answer within {DEVICE_AGAIN_S:.0f} s: the agent "
                "replaces it if it hangs, and its log says why"
            )
        self.keeper.use(self.numbers.devices_of(inventory))
        token = secrets.token_hex(TOKEN_BYTES)
        try:
            await self.keeper.admit(
                self._attempt(launch, order, inventory, hashlib.sha256(token.encode()).digest())
            )
            if launch.account is not None:
                make_passable(self.state_dir)
        except OSError as error:
            raise Refused(f"pool: {error}") from error
        env = {**launch.env, SOCKET: self.keeper.socket_path, TOKEN: token}
        return replace(launch, env=env)

    def _attempt(
        self, launch: Launch, order: StartOrder, inventory: Sequence[Gpu], token: bytes
    ) -> Attempt:
        held = [gpu for hold in order.gpus for gpu in inventory if gpu.uuid == hold.uuid]
        spec, numbers = order.spec, tuple(map(self.numbers.number_of, held))
        limits = dict.fromkeys(numbers, spec.pool_bytes) if spec.pool_bytes else {}
        if spec.host_pool_bytes:
            limits[HOST] = spec.host_pool_bytes
        near = sorted(dict.fromkeys(gpu.numa for gpu in held))
        return Attempt(
            key=key_of(launch.ref),
            tenant=order.tenant,
            token=token,
            limits=limits,
            job_dir=f"{self.state_dir}/jobs/{key_of(launch.ref)}",
            ordinals=numbers,
            numa=tuple(near) if all(place in self.numas for place in near) else (),
        )

    async def let_go(self, key: str) -> dict[str, str]:
        """Free the attempt's memory; return the receipt's entry. Harmless when repeated."""
        if self.keeper is None:
            return {}
        if key in self.returned:
            return {POOLS: RETURNED}
        if key in self._noted and not await self._opened(RELEASE_S):
            return {POOLS: NO_ANSWER}
        if key not in self.keeper.attempts:
            return {}
        if await self.keeper.release(key):
            self.returned.add(key)
            return {POOLS: RETURNED}
        return {POOLS: NO_ANSWER}

    def forget(self, key: str) -> None:
        self.returned.discard(key)

    def report(self) -> MemoryReport:
        """Return what the broker has granted."""
        if self.keeper is None:
            return MemoryReport()
        keeper = self.keeper
        return report(
            keeper.devices,
            keeper.answers,
            attempts=keeper.attempts,
            grants=keeper.grants.values(),
            restarts=keeper.restarts,
        )

    async def listen(self, bus: Bus, node_id: str) -> None:
        """Answer gateways that ask for the node's memory."""
        await bus.subscribe(ask_node(node_id, "memory"), self._answer, concurrent=True)

    async def _answer(self, subject: str, data: bytes) -> bytes | None:
        return _encode(self.report())

    async def _opened(self, within_s: float) -> bool:
        """Wait for the broker of an earlier agent; return whether it is here in time."""
        if self._opening is not None:
            await asyncio.wait([self._opening], timeout=within_s)
        return self._opening is None or (
            self._opening.done()
            and not self._opening.cancelled()
            and self._opening.exception() is None
        )

    async def close(self) -> None:
        """Let go of the broker; it lives on while attempts have pools."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self.keeper is not None:
            await self.keeper.close()


def socket_folder(env: Mapping[str, str]) -> str:
    """Return the folder of the broker's socket; empty for a job without a pool."""
    return os.path.dirname(env.get(SOCKET, ""))
