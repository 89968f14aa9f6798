"""The scrub: clear a device's memory before another job has it, by a reset or an operator's
command.

Every release scrubs the devices that no attempt uses, because the next user is not known yet. A job
that starts there waits (`over`); of several such jobs the first one scrubs. If the scrub fails, the
device is not clean and is quarantined. If there is no way to scrub, the receipt says so. A reset
affects a whole card, so it waits until no part is in use. Other work on free devices takes its
`turn` too. A device that must still be scrubbed is kept on disk: the attempt that was to start on
it may be lost with the agent. Tests: tests/integration/test_scrubbing.py, test_scrub_turns.py.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

import msgspec

from libs.common.devices.device_controls import DONE
from libs.common.devices.partition import card_of, on_cards_of
from libs.common.errors import MusterError, Refused
from libs.common.life.gpu_life import OFFLINE, QUARANTINED
from libs.common.model import GpuId
from services.node_agent.core.controls import lasting_orders
from services.node_agent.core.devices import Trouble
from services.node_agent.core.observations import (
    DeviceControlled,
    DeviceTroubleChanged,
    Observation,
)
from services.node_agent.core.state import State
from services.node_agent.devices.attempts import holding, running
from services.node_agent.devices.device_commands import carry_out
from services.node_agent.directories import keeping_files
from services.node_agent.directories.protocol import Memory
from services.node_agent.drivers import Driver
from services.node_agent.drivers.readings import Lacking, Reset
from services.node_agent.health.operator_command import OperatorCommand

BY_RESET: Final = "reset"
NO_WAY: Final = "not done: this node has no way (MUSTER_SCRUB)"
FAILED: Final = "failed: "
NOT_CLEARED: Final = "its memory was not cleared: "
SOURCE: Final = "scrub"
LATER: Final = "later: others are on its card"
# A failed scrub is not repeated at each check, but after this time.
AGAIN_S: Final = 30.0
# The file in the state directory.
FILE: Final = "devices-owed.json"


class Owed(msgspec.Struct, frozen=True):
    """The contents of the file: the devices that must be scrubbed before the next job."""

    boot_id: str
    uuids: tuple[GpuId, ...]


class Scrubbed(msgspec.Struct, frozen=True):
    """The text for the receipt, and the devices that are not clean, with the reasons."""

    result: str
    failed: dict[GpuId, str] = {}


class Scrub:
    """The scrub of this node.

    `command.command` is empty, "reset", or a command to run on the device.
    """

    def __init__(
        self,
        driver: Driver,
        command: OperatorCommand,
        state: Callable[[], State],
        tell: Callable[[Observation], None],
        memory: Memory,
    ) -> None:
        self.driver, self.command, self.state, self.tell = driver, command, state, tell
        self.memory, self.boot_id = memory, ""
        self.keeping = asyncio.Lock()
        self.turns: dict[str, asyncio.Lock] = {}
        self.failed: dict[GpuId, tuple[float, str]] = {}
        self.owed: dict[GpuId, None] = {}
        # By attempt the devices that it may use, also before it is launched.
        self.entered: dict[str, set[GpuId]] = {}

    @property
    def wanted(self) -> bool:
        return bool(self.command.command)

    async def open(self, boot_id: str) -> None:
        """Read which devices an earlier agent of this boot had to scrub. A restart of the machine
        clears them.
        """
        self.boot_id = boot_id
        data = await self.memory.kept(FILE)
        before = msgspec.json.decode(data, type=Owed) if data else Owed("", ())
        if before.boot_id == boot_id:
            self.owed = dict.fromkeys(before.uuids)

    async def owe(self, uuids: Iterable[GpuId]) -> None:
        """Note devices that must be scrubbed before the next job, also by the next agent."""
        before = len(self.owed)
        self.owed |= dict.fromkeys(uuids)
        if len(self.owed) > before:
            await self._keep()

    async def _keep(self) -> None:
        async with self.keeping:
            data = msgspec.json.encode(Owed(self.boot_id, tuple(self.owed)))
            await keeping_files.kept(self.memory, FILE, data)

    async def of(self, uuids: Sequence[GpuId]) -> Scrubbed:
        if not self.wanted:
            return Scrubbed(NO_WAY)
        found = dict(zip(uuids, await asyncio.gather(*map(self._scrub, uuids)), strict=True))
        result = list(dict.fromkeys(found.values()))
        words = (
            result[0]
            if len(result) == 1
            else "; ".join(f"GPU {uuid}: {each}" for uuid, each in found.items())
        )
        return Scrubbed(
            words, {uuid: each for uuid, each in found.items() if each.startswith(FAILED)}
        )

    async def over(self, key: str, uuids: Iterable[GpuId]) -> None:
        """Wait until none of the attempt's devices is being scrubbed or must be scrubbed first.

        A device must still be scrubbed if an attempt left it while another was to start on it,
        which then never started. Other attempts that wait here do not keep it from that. Raises
        Refused after the trouble was reported.
        """
        known = self.state().attempts
        self.entered = {other: had for other, had in self.entered.items() if other in known}
        entered = self.entered[key] = set()
        for uuid in uuids:
            turn = self.turn(uuid) if uuid in self.owed else self.turns.get(card_of(uuid))
            if turn is None:
                entered.add(uuid)
                continue
            async with turn:
                others = holding(self.state(), self.entered, but=key)
                due = uuid in self.owed and self._is_free(uuid, others)
                result = await self._clear(uuid) if due else ""
                if not result.startswith(FAILED):
                    entered.add(uuid)
            if result.startswith(FAILED):
                self.tell(
                    DeviceTroubleChanged(
                        uuid, QUARANTINED, Trouble(OFFLINE, f"{NOT_CLEARED}{result}", source=SOURCE)
                    )
                )
                raise Refused(f"GPU {uuid} is not fit for a job: {NOT_CLEARED}{result}")

    def turn(self, uuid: GpuId) -> asyncio.Lock:
        """Hold the card: the holder alone resets, fills or tries its free devices."""
        return self.turns.setdefault(card_of(uuid), asyncio.Lock())

    def _is_free(self, uuid: GpuId, held: Collection[GpuId]) -> bool:
        """Return whether the device is free: its card for a reset, itself for a command."""
        return (
            not on_cards_of([uuid], held) if self.command.command == BY_RESET else uuid not in held
        )

    async def _scrub(self, uuid: GpuId) -> str:
        async with self.turn(uuid):
            if self._is_free(uuid, running(self.state())):
                return await self._clear(uuid)
            await self.owe([uuid])
            return LATER

    async def _clear(self, uuid: GpuId) -> str:
        at_s, why = self.failed.get(uuid, (0.0, ""))
        if why and time.monotonic() < at_s + AGAIN_S:
            return why
        result = await (self._reset(uuid) if self.command.command == BY_RESET else self._fill(uuid))
        self.failed.pop(uuid, None)
        if result.startswith(FAILED):
            self.failed[uuid] = (time.monotonic(), result)
        elif done := self._done_with(uuid):
            self.owed = {other: None for other in self.owed if other not in done}
            await self._keep()
        return result

    def _done_with(self, uuid: GpuId) -> Collection[GpuId]:
        """Return the devices to scrub that a scrub of this one includes: a reset does the card."""
        return (
            on_cards_of(self.owed, [uuid])
            if self.command.command == BY_RESET
            else {uuid} & self.owed.keys()
        )

    async def _reset(self, uuid: GpuId) -> str:
        try:
            done = await self.driver.control(uuid, Reset())
            if isinstance(done, Lacking):
                return f"not possible: {done.why}"
            await self._put_back(uuid)
            held = await self.driver.unclean([uuid])
        except MusterError as error:
            return f"{FAILED}{error}"
        return (
            f"{FAILED}after its reset {held[uuid]}"
            if uuid in held
            else f"done: reset{f' ({done.note})' if done.note else ''}"
        )

    async def _put_back(self, uuid: GpuId) -> None:
        """Restore the operators' settings, which a reset clears; log those that fail."""
        for order in lasting_orders(self.state().controls, uuid):
            done = await carry_out(self.driver, order)
            if done.outcome != DONE:
                self.tell(DeviceControlled(done))

    async def _fill(self, uuid: GpuId) -> str:
        why = await self.command.on(uuid)
        return f"{FAILED}{why}" if why else "done: command"
