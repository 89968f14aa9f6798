"""The MIG instances of this node's attempts: made before a job starts, removed when it is over.

A placement names the memory slices, and no other attempt has them until JobReleased, so the slices
say who owns an instance; the driver reuses its numbers. Nothing is written to disk: the next agent
finds every instance again, and removes those that no attempt owns. Tests:
tests/drivers/test_instances.py, tests/integration/test_mig_jobs.py.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from libs.common.errors import MusterError, Refused
from libs.common.life.gpu_life import OFFLINE, QUARANTINED
from libs.common.model import Gpu, GpuHold, GpuId
from services.node_agent.core.devices import RELEASE, Trouble
from services.node_agent.core.observations import DeviceTroubleChanged
from services.node_agent.drivers import Driver
from services.node_agent.drivers.readings import (
    CreateMigInstance,
    DestroyMigInstance,
    Lacking,
    ListMigInstances,
    MigInstance,
)


class Instances:
    """The MIG instances of one node.

    `gpus` are the node's devices. `owned` returns the slices per device of all attempts except the
    one with this key.
    """

    def __init__(
        self,
        driver: Driver,
        gpus: Callable[[], Sequence[Gpu]],
        owned: Callable[[str], Mapping[GpuId, int]],
    ) -> None:
        self.driver, self.gpus, self.owned = driver, gpus, owned
        # One at a time per card: a number that was read must not be reused before its removal.
        self.turns: defaultdict[GpuId, asyncio.Lock] = defaultdict(asyncio.Lock)
        # Cards on which a sweep found no instance, and none was made since.
        self.bare: set[GpuId] = set()
        # Cards on which the driver failed to make an instance, until that is reported.
        self.failed: dict[GpuId, str] = {}
        # The slices of the instances on each card by number, as the driver last listed them.
        self.known: dict[GpuId, dict[int, int]] = {}

    def slices_of(self, uuid: GpuId, number: int) -> int | None:
        """Return the memory slices of an instance by its number; 0: it does not exist; None:
        unknown.
        """
        return self.known[uuid].get(number, 0) if uuid in self.known else None

    async def make(self, holds: Sequence[GpuHold], key: str = "") -> dict[GpuId, MigInstance]:
        """Make an attempt's instances.

        Raises Refused, also if a card's mode does not fit; instances made by then stay until
        `sweep`. An instance in the same place was made by an agent that was killed and is removed
        first.
        """
        cards = {gpu.uuid: gpu for gpu in self.gpus()}
        made = {}
        if cut := [hold.uuid for hold in holds if hold.mig_slices]:
            await self.sweep(cut, key)
        for hold in holds:
            card = cards.get(hold.uuid)
            if not hold.mig_slices:
                if card is not None and card.mig:
                    raise Refused(
                        f"GPU {hold.uuid} is in MIG mode by now: only instances of it can be used"
                    )
                continue
            async with self.turns[hold.uuid]:
                made[hold.uuid] = await self._make(hold)
        return made

    async def _make(self, hold: GpuHold) -> MigInstance:
        start = (hold.mig_slices & -hold.mig_slices).bit_length() - 1
        what = f"MIG instance {hold.mig_profile} at slice {start} of GPU {hold.uuid}"
        self.bare.discard(hold.uuid)
        try:
            done = await self.driver.control(hold.uuid, CreateMigInstance(hold.mig_profile, start))
        except MusterError as error:
            self.failed[hold.uuid] = f"{what} was not made: {error}"
            raise Refused(self.failed[hold.uuid]) from error
        if isinstance(done, Lacking):
            raise Refused(f"{what} was not made: {done.why}")
        (made,) = done.instances
        self.known.setdefault(hold.uuid, {})[made.number] = made.slices
        if made.slices != hold.mig_slices:
            raise Refused(
                f"{what} has other slices than its card's table says: {made.slices:#b}, not "
                f"{hold.mig_slices:#b}"
            )
        return made

    async def sweep(self, uuids: Iterable[GpuId], key: str = "") -> dict[GpuId, str]:
        """Remove every instance that no attempt except this one owns; return what is left, and why.

        Safe to repeat.
        """
        able = [gpu.uuid for gpu in self.gpus() if gpu.mig_profiles]
        cut = [uuid for uuid in uuids if uuid in able]
        found = await asyncio.gather(*(self._sweep(uuid, key) for uuid in cut))
        return {uuid: why for uuid, why in zip(cut, found, strict=True) if why}

    async def release(self, uuids: Iterable[GpuId], key: str) -> dict[GpuId, str]:
        """Sweep at the end of an attempt; cards known to be empty are not asked."""
        maybe = [uuid for uuid in uuids if uuid not in self.bare]
        return await self.sweep(maybe, key) if maybe else {}

    async def clear(
        self, uuids: Sequence[GpuId], tell: Callable[[DeviceTroubleChanged], None], key: str = ""
    ) -> None:
        """Sweep outside a release; quarantine a device if something is left.

        A device on which no instance could be made is quarantined too, so that the next attempt is
        not placed there at once.
        """
        failed = {uuid: self.failed.pop(uuid) for uuid in uuids if uuid in self.failed}
        for uuid, why in {**failed, **await self.sweep(uuids, key)}.items():
            tell(DeviceTroubleChanged(uuid, QUARANTINED, Trouble(OFFLINE, why, source=RELEASE)))

    async def _sweep(self, uuid: GpuId, key: str) -> str:
        async with self.turns[uuid]:
            try:
                stays = [await self._removed(uuid, one) for one in await self._unowned(uuid, key)]
                left = await self._unowned(uuid, key) if any(stays) else []
            except MusterError as error:
                return f"the MIG instances cannot be listed, so one may be left: {error}"
        named = ", ".join(f"{one.profile} at slice {one.start}" for one in left)
        return (
            f"a MIG instance that no job owns is left ({named}): {'; '.join(filter(None, stays))}"
            if left
            else ""
        )

    async def _unowned(self, uuid: GpuId, key: str) -> list[MigInstance]:
        done = await self.driver.control(uuid, ListMigInstances())
        there = () if isinstance(done, Lacking) else done.instances
        self.known[uuid] = {one.number: one.slices for one in there}
        if not isinstance(done, Lacking) and not there:
            self.bare.add(uuid)
        owned = self.owned(key).get(uuid, 0)
        return [one for one in there if not one.slices & owned]

    async def _removed(self, uuid: GpuId, one: MigInstance) -> str:
        """Remove an instance; return why that failed, empty if it did not."""
        try:
            done = await self.driver.control(uuid, DestroyMigInstance(one.number))
        except MusterError as error:
            return str(error)
        if isinstance(done, Lacking):
            return done.why
        self.known.get(uuid, {}).pop(one.number, None)
        return ""
