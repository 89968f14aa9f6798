"""Turn readings of devices into observations: errors of the driver and the kernel's log, heat,
counters.

The driver's recovery field is read in the round after an error, never before. A device that is too
hot must cool below a lower limit. Errors that a device corrects itself are counted (`counters.py`).
Consequences are decided in `core/devices.py`. Tests: tests/unit/test_health_watch.py.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from libs.common.devices import error_catalogue as e
from libs.common.devices.error_catalogue import Catalogue, Row, Seen
from libs.common.life import gpu_life
from libs.common.model import Gpu, GpuId
from services.node_agent.core.devices import HOT, Trouble
from services.node_agent.core.observations import DeviceErrorSeen, DeviceTroubleChanged, Observation
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import Event, Sample
from services.node_agent.drivers.simulated import VENDOR as SIMULATED
from services.node_agent.health.counters import Bound, Counts
from services.node_agent.health.kernel_lines import Line, is_at, parse

# Kernel lines that wait for the next round.
LINES_MAX: Final = 1_000
DRIVER: Final = "driver"
KERNEL_LOG: Final = "kernel_log"
REMAP_PENDING: Final = "remap_pending"
REMAP_FAILED: Final = "remap_failed"
FABRIC: Final = "fabric"
XID: Final = "xid "
# Errors that readings show. Rows of the catalogue hold their limits.
SRAM_THRESHOLD: Final = "sram_threshold"
UNCORRECTED: Final = "uncorrected"
# The catalogue's names of driver events. NVIDIA's kernel module also reports a double-bit error and
# a lost device, as Xid 48 and 79, so both reports have one name.
ERRORS: Final = {
    r.ECC: "uncorrectable",
    r.LOST: "lost",
    r.RESET_BEGAN: "driver_reset",
    r.PAGE_FAULT: "page_fault",
}
SAME_AS: Final = {("nvidia", "uncorrectable"): "xid 48", ("nvidia", "lost"): "xid 79"}


NO_ROWS: Final = Catalogue("", ())


class Limits(msgspec.Struct, frozen=True):
    """The limits of a site.

    From `pause_c` on a device takes no new work, below `resume_c` it does again. More corrected
    memory or link errors in a window than these are reported.
    """

    pause_c: int = 85
    resume_c: int = 80
    corrected_max: int = 100
    link_errors_max: int = 100
    corrected_window_s: int = 3_600


class Watch:
    """The watch over a node's devices.

    `gpus` are the devices, `version_of` gives a device's driver version, `key_of` the attempt of a
    process. `slices_of` gives the memory slices of a MIG instance by its number: 0 if there is
    none, None if unknown. `catalogue` has the limits of readings.
    """

    def __init__(
        self,
        limits: Limits,
        gpus: Callable[[], Sequence[Gpu]],
        tell: Callable[[Observation], None],
        version_of: Callable[[GpuId], str] = lambda uuid: "",
        key_of: Callable[[int], str] = lambda pid: "",
        slices_of: Callable[[GpuId, int], int | None] = lambda uuid, number: None,
        catalogue: Catalogue = NO_ROWS,
    ) -> None:
        self.limits, self.gpus, self.tell, self.version_of, self.key_of = (
            limits,
            gpus,
            tell,
            version_of,
            key_of,
        )
        self.slices_of, self.catalogue = slices_of, catalogue
        self.lines: deque[Line] = deque(maxlen=LINES_MAX)
        # The number of the last Xid error of each device.
        self.xids: dict[GpuId, int] = {}
        self.ailing: dict[tuple[GpuId, str], None] = {}
        most = {
            "corrected": limits.corrected_max,
            "link_errors": limits.link_errors_max,
            "pcie_replays": limits.link_errors_max,
        }
        self.site = {name: Bound(count, limits.corrected_window_s) for name, count in most.items()}
        self.rows: dict[tuple[GpuId, str], Row | None] = {}
        self.counts = Counts()

    def keep_line(self, record: str) -> bool:
        """Keep a line of the kernel's log for the next round; return whether it is
        about a device.
        """
        line = parse(record)
        if line is not None:
            self.lines.append(line)
        return line is not None

    def round(self, events: Sequence[Event], samples: Mapping[GpuId, Sample]) -> None:
        """Report what the events, the kernel lines and the samples of a round show."""
        for event in events:
            self._event(event, samples)
        while self.lines:
            self._report_switch(self.lines.popleft(), samples)
        for uuid, sample in samples.items():
            self._report_sample(uuid, sample)

    def _report_switch(self, line: Line, samples: Mapping[GpuId, Sample]) -> None:
        """Report an error of a switch for each device on its fabric.

        Their recovery fields say nothing about a switch.
        """
        key = self.key_of(line.pid) if line.pid else ""
        if not line.kind:
            for gpu in self._at(line.pci_bus):
                self._erred(
                    gpu=gpu,
                    vendor=line.vendor,
                    error=line.error,
                    text=line.text,
                    samples=samples,
                    source=KERNEL_LOG,
                    key=key,
                    instance=line.instance,
                )
            return
        for gpu in self._on_fabric(line.vendor):
            seen = Seen(
                vendor=line.vendor,
                model=gpu.model,
                driver=self.version_of(gpu.uuid),
                error=line.error,
                text=line.text,
                kind=line.kind,
            )
            self.tell(DeviceErrorSeen(gpu.uuid, seen, KERNEL_LOG))

    def _event(self, event: Event, samples: Mapping[GpuId, Sample]) -> None:
        """Report an event; one without an address concerns every device of its vendor."""
        gpus = (
            self._at(event.pci_bus)
            if event.pci_bus
            else [gpu for gpu in self.gpus() if gpu.vendor == event.vendor]
        )
        error = f"{XID}{event.number}" if event.kind == r.XID else ERRORS.get(event.kind, "")
        for gpu in gpus:
            if error:
                self._erred(
                    gpu=gpu,
                    vendor=event.vendor,
                    error=error,
                    text=event.text,
                    samples=samples,
                    source=DRIVER,
                    instance=event.instance,
                )
            if event.kind == r.WEDGED:
                self.tell(
                    DeviceTroubleChanged(
                        gpu.uuid, r.WEDGED, Trouble(gpu_life.OFFLINE, event.text, source=DRIVER)
                    )
                )
            if event.kind == r.ANSWERS:
                self.tell(DeviceTroubleChanged(gpu.uuid, r.WEDGED, None))
                self.tell(DeviceTroubleChanged(gpu.uuid, r.LOST, None))

    def _erred(
        self,
        gpu: Gpu,
        vendor: str,
        error: str,
        text: str,
        samples: Mapping[GpuId, Sample],
        source: str,
        key: str = "",
        instance: int | None = None,
    ) -> None:
        sample = samples.get(gpu.uuid)
        recovery = (
            sample.recovery_action
            if sample is not None and isinstance(sample.recovery_action, int)
            else None
        )
        if error.startswith(XID):
            self.xids[gpu.uuid] = int(error.removeprefix(XID))
        name = SAME_AS.get((vendor, error), error)
        slices = self.slices_of(gpu.uuid, instance) if instance is not None else None
        words = f"MIG instance {instance}: {text}".rstrip(": ") if instance is not None else text
        self.tell(
            DeviceErrorSeen(
                uuid=gpu.uuid,
                error=Seen(
                    vendor,
                    model=gpu.model,
                    driver=self.version_of(gpu.uuid),
                    error=name,
                    text=words,
                    recovery=recovery,
                ),
                source=source,
                key=key,
                slices=slices,
            )
        )

    def _at(self, address: str) -> list[Gpu]:
        return [gpu for gpu in self.gpus() if is_at(gpu.pci_bus, address)]

    def _on_fabric(self, vendor: str) -> list[Gpu]:
        """Return the devices with links, or all of the vendor if none has a link: links of a fabric
        that is not up are inactive.
        """
        gpus = [gpu for gpu in self.gpus() if gpu.vendor in (vendor, SIMULATED)]
        return [gpu for gpu in gpus if gpu.links] or gpus

    def _report_sample(self, uuid: GpuId, sample: Sample) -> None:
        """Report the troubles, counters and limits that a sample shows."""
        for reason, wrong, trouble in self._troubles(uuid, sample):
            if wrong and (uuid, reason) not in self.ailing:
                self.ailing[uuid, reason] = None
                self.tell(DeviceTroubleChanged(uuid, reason, trouble))
            if not wrong and (uuid, reason) in self.ailing:
                del self.ailing[uuid, reason]
                self.tell(DeviceTroubleChanged(uuid, reason, None))
        gpu = next((gpu for gpu in self.gpus() if gpu.uuid == uuid), None)
        if gpu is None:
            return
        row = self._row(gpu, UNCORRECTED)
        risen = {UNCORRECTED: Bound(row.most, row.window_s)} if row is not None else {}
        for name, text in self.counts.rises(uuid, sample, self.site | risen):
            self.tell(
                DeviceErrorSeen(
                    uuid,
                    Seen(
                        vendor=gpu.vendor,
                        model=gpu.model,
                        driver=self.version_of(uuid),
                        error=name,
                        text=text,
                    ),
                    DRIVER,
                )
            )
        self._sram(gpu, sample)

    def _row(self, gpu: Gpu, error: str) -> Row | None:
        """Return the catalogue row that limits a reading of the device.

        A simulated device has NVIDIA's limits.
        """
        if (gpu.uuid, error) not in self.rows:
            self.rows[gpu.uuid, error] = e.row_of(self._seen(gpu, error), self.catalogue.rows)
        return self.rows[gpu.uuid, error]

    def _seen(self, gpu: Gpu, error: str, text: str = "") -> Seen:
        vendor = "nvidia" if gpu.vendor == SIMULATED else gpu.vendor
        return Seen(
            vendor, model=gpu.model, driver=self.version_of(gpu.uuid), error=error, text=text
        )

    def _sram(self, gpu: Gpu, sample: Sample) -> None:
        """Report a reading over its limit once, until it is within the limit again."""
        value, row, key = (
            sample.sram_threshold,
            self._row(gpu, SRAM_THRESHOLD),
            (gpu.uuid, SRAM_THRESHOLD),
        )
        if not isinstance(value, int) or row is None:
            return
        if value > row.most and key not in self.ailing:
            self.ailing[key] = None
            text = (
                "its driver says so; uncorrectable SRAM errors since it was loaded: "
                f"{sample.sram_uncorrected}"
            )
            self.tell(DeviceErrorSeen(gpu.uuid, self._seen(gpu, SRAM_THRESHOLD, text), DRIVER))
        if value <= row.most and key in self.ailing:
            del self.ailing[key]
            self.tell(DeviceTroubleChanged(gpu.uuid, SRAM_THRESHOLD, None))

    def _troubles(self, uuid: GpuId, sample: Sample) -> Iterator[tuple[str, bool, Trouble]]:
        """Yield what the readings of a device show: the reason, whether it holds, and
        its trouble.
        """
        degrees = sample.temperature_c
        if isinstance(degrees, int):
            mark = self.limits.resume_c if (uuid, HOT) in self.ailing else self.limits.pause_c
            yield (
                HOT,
                degrees >= mark,
                Trouble(
                    gpu_life.OFFLINE, f"{degrees} C; from {self.limits.pause_c} C on", source=DRIVER
                ),
            )
        if isinstance(sample.remap_pending, int):
            waits = "a row remap waits for a reset, which follows when no job has the device"
            yield (
                REMAP_PENDING,
                sample.remap_pending > 0,
                Trouble(gpu_life.DEGRADED, waits, e.DRAIN_THEN_RESET, DRIVER),
            )
        if isinstance(sample.fabric, str):
            yield (
                FABRIC,
                bool(sample.fabric),
                Trouble(gpu_life.DEGRADED, sample.fabric, source=DRIVER, alone=True),
            )
        if isinstance(sample.remap_failed, int):
            yield (
                REMAP_FAILED,
                sample.remap_failed > 0,
                Trouble(gpu_life.OFFLINE, "a row could not be remapped", e.REPLACE, DRIVER),
            )
