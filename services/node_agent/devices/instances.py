"""The MIG instances of this node's attempts: made before a job begins, removed once it is over; and
what no attempt owns is removed too.

Whose an instance is, the slices say that a placement names: they are nobody else's until
JobReleased, while a driver gives its numbers again. So nothing is written down before an instance
is made, an agent that was killed finds each one again, and taking back is the same as sweeping.
Tests: tests/drivers/test_instances.py, tests/integration/test_mig_jobs.py.
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
    """`gpus` are the node's devices; `owned` are, by device, the slices of all attempts but one
    (its key).
    """

    def __init__(
        self,
        driver: Driver,
        gpus: Callable[[], Sequence[Gpu]],
        owned: Callable[[str], Mapping[GpuId, int]],
    ) -> None:
        self.driver, self.gpus, self.owned = driver, gpus, owned
        # A number that was read must not be another's before it is removed.
        self.turns: defaultdict[GpuId, asyncio.Lock] = defaultdict(asyncio.Lock)
        # Cards on which a sweep found none, since when none was to be made.
        self.bare: set[GpuId] = set()
        # Where the driver failed to make one, until that is told.
        self.failed: dict[GpuId, str] = {}
        # By number the slices of the instances that are on each card, as its driver last told them.
        self.known: dict[GpuId, dict[int, int]] = {}

    def slices_of(self, uuid: GpuId, number: int) -> int | None:
        """The memory slices of an instance by its driver's number; 0: there is none; None: the
        card's instances are not known.
        """
        return self.known[uuid].get(number, 0) if uuid in self.known else None

    async def make(self, holds: Sequence[GpuHold], key: str = "") -> dict[GpuId, MigInstance]:
        """Those of an attempt.

        Raises Refused, also for a card whose mode does not fit: what was made by then is there
        until `sweep`. What is in their places is what an agent that was killed has made there, of
        which the sweep at the beginning thinks that it is theirs.
        """
        cards = {gpu.uuid: gpu for gpu in self.gpus()}
        made = {}
        await self.sweep([hold.uuid for hold in holds if hold.mig_slices], key)
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
        """Removes from these devices every instance that no attempt but this one owns; what is left
        there, and why.

        Safe to do twice.
        """
        able = [gpu.uuid for gpu in self.gpus() if gpu.mig_profiles]
        cut = [uuid for uuid in uuids if uuid in able]
        found = await asyncio.gather(*(self._sweep(uuid, key) for uuid in cut))
        return {uuid: why for uuid, why in zip(cut, found, strict=True) if why}

    async def release(self, uuids: Iterable[GpuId], key: str) -> dict[GpuId, str]:
        """The sweep at the end of an attempt, which does not ask cards on which there was nothing
        before it and nothing was made.
        """
        maybe = [uuid for uuid in uuids if uuid not in self.bare]
        return await self.sweep(maybe, key) if maybe else {}

    async def clear(
        self, uuids: Sequence[GpuId], tell: Callable[[DeviceTroubleChanged], None], key: str = ""
    ) -> None:
        """Sweeps where no release is that tells what is left: such a device is quarantined until a
        sweep leaves nothing.

        So is one on which none could be made, so that the job's next attempt is not placed there
        again at once.
        """
        failed = {uuid: self.failed.pop(uuid) for uuid in uuids if uuid in self.failed}
        for uuid, why in {**failed, **await self.sweep(uuids, key)}.items():
            tell(DeviceTroubleChanged(uuid, QUARANTINED, Trouble(OFFLINE, why, source=RELEASE)))

    async def _sweep(self, uuid: GpuId, key: str) -> str:
        async with self.turns[uuid]:
            try:
                stays = [await self._removed(uuid, one) for one in await self._nobodys(uuid, key)]
                left = await self._nobodys(uuid, key) if any(stays) else []
            except MusterError as error:
                return f"nobody can tell whether a MIG instance is left: {error}"
        named = ", ".join(f"{one.profile} at slice {one.start}" for one in left)
        return (
            f"a MIG instance that no job owns is left ({named}): {'; '.join(filter(None, stays))}"
            if left
            else ""
        )

    async def _nobodys(self, uuid: GpuId, key: str) -> list[MigInstance]:
        done = await self.driver.control(uuid, ListMigInstances())
        there = () if isinstance(done, Lacking) else done.instances
        self.known[uuid] = {one.number: one.slices for one in there}
        if not isinstance(done, Lacking) and not there:
            self.bare.add(uuid)
        owned = self.owned(key).get(uuid, 0)
        return [one for one in there if not one.slices & owned]

    async def _removed(self, uuid: GpuId, one: MigInstance) -> str:
        """Why it could not be; empty where it was."""
        try:
            done = await self.driver.control(uuid, DestroyMigInstance(one.number))
        except MusterError as error:
            return str(error)
        if isinstance(done, Lacking):
            return done.why
        self.known.get(uuid, {}).pop(one.number, None)
        return ""
