"""The resident data of models on one node, as the rest of the agent sees it.

`Residence` has the twins `resident.Resident` and `NoResident` (the simulation).
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from libs.common.messages import StartOrder
from libs.common.model import AttemptRef, Gpu
from services.node_agent.core.actions import KeepData
from services.node_agent.core.keeping import Keeps
from services.node_agent.core.state import State
from services.node_agent.directories.protocol import Launch, OnEvent


class Residence(Protocol):
    """The resident data of models on this node (`resident/`)."""

    def isolation(self) -> dict[str, str]:
        """Return what NodeRegistered says about resident data."""
        ...

    async def start(
        self,
        tell: OnEvent,
        keeps: Callable[[], Keeps],
        living: Collection[str],
        inventory: Sequence[Gpu],
    ) -> None:
        """Find what earlier agents kept. `keeps` returns what is wanted now, `living` are the keys
        of attempts that still run.
        """
        ...

    async def close(self) -> None:
        """Let go of everything; the data stays."""
        ...

    async def watch(self, state: Callable[[], State]) -> None:
        """Follow the standbys of this node's replicas, for ever."""
        ...

    async def carry_out(self, action: KeepData) -> None:
        """Bring one entry to its desired state, and report it."""
        ...

    async def prepare(
        self,
        launch: Launch,
        order: StartOrder,
        gpus: Sequence[Gpu],
        drivers: Mapping[str, str],
        wanted: Callable[[], bool],
    ) -> Launch:
        """Return the launch of a replica with its part of the resident data.

        Raises Refused if memory of its devices stays with resident data, or if the attempt is not
        `wanted` any more.
        """
        ...

    async def let_go(self, key: str) -> str:
        """End an attempt's access to weights; return why that failed, empty if it did not."""
        ...

    def device_bytes(self) -> dict[tuple[str, str], int]:
        """Return the bytes of weights by device and model."""
        ...

    def processes(self) -> Collection[int]:
        """Return processes that hold devices and that no job left."""
        ...

    async def finished(self, ref: AttemptRef, healthy: bool, ready_ms: int) -> None:
        """Keep what a replica leaves for others, if it finished healthy."""
        ...


class NoResident:
    """A node that keeps no data of models (the simulation)."""

    def isolation(self) -> dict[str, str]:
        return {}

    async def start(
        self,
        tell: OnEvent,
        keeps: Callable[[], Keeps],
        living: Collection[str],
        inventory: Sequence[Gpu],
    ) -> None:
        """Do nothing: this node has no resident data."""

    async def close(self) -> None:
        """Do nothing: this node has no resident data."""

    async def watch(self, state: Callable[[], State]) -> None:
        await asyncio.Event().wait()

    async def carry_out(self, action: KeepData) -> None:
        """The scheduler sends no orders to such a node."""

    async def prepare(
        self,
        launch: Launch,
        order: StartOrder,
        gpus: Sequence[Gpu],
        drivers: Mapping[str, str],
        wanted: Callable[[], bool],
    ) -> Launch:
        return launch

    async def let_go(self, key: str) -> str:
        return ""

    def device_bytes(self) -> dict[tuple[str, str], int]:
        return {}

    def processes(self) -> Collection[int]:
        return ()

    async def finished(self, ref: AttemptRef, healthy: bool, ready_ms: int) -> None:
        """Nothing is kept."""
