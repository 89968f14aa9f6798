"""A short check of a job's devices before it starts, so that no job starts on a bad device.

A fresh sample is enough. Otherwise, or if it shows a fault, the device is asked again. A fault
takes the device out of use for its own cause; the job is placed elsewhere, and the device returns
as after any such fault. `wrong` is pure. Tests: tests/unit/test_preflight.py.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from libs.common.devices import error_catalogue as e
from libs.common.errors import Refused
from libs.common.life import gpu_life
from libs.common.model import GpuId
from services.node_agent.core.devices import HOT, Trouble
from services.node_agent.core.observations import DeviceTroubleChanged, Observation
from services.node_agent.core.state import State
from services.node_agent.devices.attempts import undivided
from services.node_agent.devices.sampling import Sampling
from services.node_agent.directories.protocol import Machine
from services.node_agent.drivers import Driver
from services.node_agent.drivers.local import SLACK_BYTES
from services.node_agent.drivers.readings import Sample
from services.node_agent.health.watch import REMAP_PENDING

SOURCE: Final = "preflight"
RECOVERY: Final = "recovery_action"
# A sample is fresh for two rounds, and at least for this time.
FRESH_S: Final = 1.0
NO_ANSWER: Final = "its driver does not answer"


class Preflight:
    """The preflight of this machine's devices, if `machine.preflight` is set."""

    def __init__(
        self,
        driver: Driver,
        sampling: Sampling,
        machine: Machine,
        state: Callable[[], State],
        tell: Callable[[Observation], None],
    ) -> None:
        self.driver, self.sampling, self.wanted, self.pause_c = (
            driver,
            sampling,
            machine.preflight,
            machine.pause_c,
        )
        self.state, self.tell = state, tell

    async def look(self, key: str, uuids: Sequence[GpuId]) -> None:
        """Check the devices of the attempt `key`.

        The memory of devices that no other attempt uses must be free. Raises Refused after it has
        reported the troubles of the bad devices.
        """
        if not self.wanted or self._shows_no_fault(key, uuids):
            return
        await self.sampling.look()
        found = self._found(uuids, await self._held(undivided(self.state(), uuids, but=key)))
        for uuid, (reason, trouble) in found.items():
            self.tell(DeviceTroubleChanged(uuid, reason, trouble))
        if found:
            raise Refused(
                "; ".join(
                    f"GPU {uuid} is not fit for a job: {trouble.detail}"
                    for uuid, (_, trouble) in found.items()
                )
            )

    def _shows_no_fault(self, key: str, uuids: Sequence[GpuId]) -> bool:
        """Return whether the last samples show no fault.

        Simulated devices are asked if something has happened to them.
        """
        samples = [self.sampling.latest.get(uuid) for uuid in uuids]
        if any(sample is None or wrong(sample, self.pause_c) is not None for sample in samples):
            return False
        if self.driver.simulated:
            return True
        before_ns, free = (
            time.time_ns() - int(max(FRESH_S, 2 * self.sampling.every_s) * 1e9),
            undivided(self.state(), uuids, but=key),
        )
        sampled = [
            (uuid, sample)
            for uuid, sample in zip(uuids, samples, strict=True)
            if sample is not None
        ]
        return all(
            sample.at_ns >= before_ns and (uuid not in free or self._is_free(sample))
            for uuid, sample in sampled
        )

    def _is_free(self, sample: Sample) -> bool:
        used = sample.memory_used_bytes
        return (
            isinstance(used, int)
            and used <= self.driver.baseline.get(sample.pci_bus, 0) + SLACK_BYTES
        )

    async def _held(self, alone: Sequence[GpuId]) -> Mapping[GpuId, str]:
        return await self.driver.unclean(alone) if alone else {}

    def _found(
        self, uuids: Sequence[GpuId], held: Mapping[GpuId, str]
    ) -> dict[GpuId, tuple[str, Trouble]]:
        found = {}
        for uuid in uuids:
            sample = self.sampling.latest.get(uuid)
            bad = wrong(sample, self.pause_c) if sample is not None else None
            left = NO_ANSWER if sample is None or sample.stale else held.get(uuid, "")
            if bad is not None:
                found[uuid] = bad
            elif left:
                found[uuid] = gpu_life.QUARANTINED, Trouble(gpu_life.OFFLINE, left, source=SOURCE)
        return found


def wrong(sample: Sample, pause_c: int) -> tuple[str, Trouble] | None:
    """Return why a device that answers must take no work: the reason as in `watch.py`, and the
    trouble.
    """
    degrees, action = sample.temperature_c, sample.recovery_action
    if isinstance(degrees, int) and degrees >= pause_c:
        return HOT, Trouble(gpu_life.OFFLINE, f"{degrees} C; from {pause_c} C on", source=SOURCE)
    if isinstance(action, int) and action in e.RECOVERY_ACTIONS:
        verdict = e.RECOVERY_ACTIONS[action]
        return RECOVERY, Trouble(
            gpu_life.OFFLINE, f"its driver asks for recovery action {action}", verdict, SOURCE
        )
    if isinstance(sample.remap_pending, int) and sample.remap_pending > 0:
        return REMAP_PENDING, Trouble(
            gpu_life.OFFLINE, "a row remap waits for a reset", e.DRAIN_THEN_RESET, SOURCE
        )
    return None
