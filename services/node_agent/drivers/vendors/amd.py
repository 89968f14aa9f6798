"""AMD's devices, through AMD SMI (the package amdsmi).

Where ROCm is installed its own amdsmi is used, because the library's structs have no versions. A
device's id is the one that ROCR_VISIBLE_DEVICES takes. Each compute partition of a card is a device
of its own (`libs/common/devices/partition.py`). A sample leaves out what the binding reads slowly:
the reasons for throttling (0.1 s each time) and the PCIe throughput (1 s).
"""

import contextlib
import ctypes
import io
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, assert_never

from libs.common.devices.partition import part_id
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import (
    Command,
    Device,
    Done,
    Event,
    Lacking,
    Link,
    Process,
    Reading,
    Sample,
)
from services.node_agent.drivers.vendors import (
    GONE,
    LASTING,
    PASSING,
    Asking,
    Lost,
    NotThere,
    Refusal,
    pci_address,
    words,
)

MIB: Final = 1 << 20
KIB: Final = 1 << 10
# Error codes of AMD SMI. Lasting: not supported, not implemented, no such symbol, no permission, no
# such file, setting unavailable. Gone: device not found, driver not loaded. A call for events
# answers NO_DATA if there are none.
LASTING_CODES: Final = (2, 3, 5, 10, 52, 55)
GONE_CODES: Final = (31, 34)
NO_PERMISSION: Final = 10
NO_DATA: Final = 40
XGMI: Final = 2
UNKNOWN: Final = "N/A"
# A device that has appeared since the driver listed its devices.
NO_INDEX: Final = -1
EVENT_KINDS: Final = {
    "VMFAULT": r.PAGE_FAULT,
    "THERMAL_THROTTLE": r.THERMAL,
    "GPU_PRE_RESET": r.RESET_BEGAN,
    "GPU_POST_RESET": r.RESET_ENDED,
}


class Amd:
    """AMD's binding; see `vendors.Vendor`."""

    def __init__(self) -> None:
        self.smi: Any = None
        self.handles: dict[str, Any] = {}
        # The places of the devices in the driver's own list, in which a lost device counts too.
        self.indexes: dict[str, int] = {}
        self.readers: list[Any] | Lacking | None = None

    def open(self) -> None:
        """Import and initialise amdsmi, which prints on import and raises KeyError for a symbol
        that its library lacks.
        """
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self.smi = smi = import_module("amdsmi")
        except KeyError as error:
            raise NotThere(f"{error.args[0]} not found") from error
        self.ask = Asking((smi.AmdSmiException,), judge, "amd")
        try:
            smi.amdsmi_init()
        except smi.AmdSmiException as error:
            raise NotThere(words(error)) from error

    def devices(self) -> Sequence[str]:
        smi = self.smi
        self.handles.clear()
        self.indexes.clear()
        try:
            for index, handle in enumerate(smi.amdsmi_get_processor_handles()):
                with contextlib.suppress(smi.AmdSmiException):
                    address = pci_address(smi.amdsmi_get_gpu_device_bdf(handle))
                    self.handles[address], self.indexes[address] = handle, index
        except smi.AmdSmiException as error:
            raise NotThere(words(error)) from error
        return list(self.handles)

    def handle(self, device: str) -> Any:  # noqa: ANN401  the binding is not typed
        if device not in self.handles:
            try:
                self.handles[device] = self.smi.amdsmi_get_processor_handle_from_bdf(device)
            except self.smi.AmdSmiException as error:
                raise Lost(f"amd {device} is lost: {words(error)}") from error
        return self.handles[device]

    def describe(self, device: str) -> Device:
        smi, handle = self.smi, self.handle(device)
        chip = self.ask(device, "chip", smi.amdsmi_get_gpu_asic_info, handle)
        if isinstance(chip, Lacking):
            raise Lost(f"amd {device} does not report its model: {chip.why}")
        memory = self.ask(device, "memory", smi.amdsmi_get_gpu_vram_usage, handle)
        driver = self.ask(device, "driver", smi.amdsmi_get_gpu_driver_info, handle)
        return Device(
            pci_bus=device,
            uuid=part_id(f"GPU-{int(chip['asic_serial'], 16):016x}", self._part(device, handle)),
            index=self.indexes.get(device, NO_INDEX),
            vendor="amd",
            model=chip["market_name"],
            driver_version="" if isinstance(driver, Lacking) else driver["driver_version"],
            memory_bytes=0 if isinstance(memory, Lacking) else memory["vram_total"] * MIB,
            compute_partition=self.ask(
                device, "compute partition", smi.amdsmi_get_gpu_compute_partition, handle
            ),
            memory_partition=self.ask(
                device, "memory partition", smi.amdsmi_get_gpu_memory_partition, handle
            ),
            links=self._links(device, handle),
            power_mw=_range(
                self.ask(device, "cap", smi.amdsmi_get_power_cap_info, handle),
                ("min_power_cap", "max_power_cap"),
                1_000,
            ),
            clocks_mhz=_range(
                self.ask(device, "clock", smi.amdsmi_get_clock_info, handle, smi.AmdSmiClkType.GFX),
                ("min_clk", "max_clk"),
            ),
        )

    def sample(self, device: str) -> Sample:
        smi, handle, ask = self.smi, self.handle(device), self.ask
        busy, memory = (
            ask(device, "activity", smi.amdsmi_get_gpu_activity, handle),
            ask(device, "memory", smi.amdsmi_get_gpu_vram_usage, handle),
        )
        errors = ask(device, "ecc", smi.amdsmi_get_gpu_total_ecc_count, handle)
        cap = ask(device, "cap", smi.amdsmi_get_power_cap_info, handle)
        processes = ask(device, "processes", smi.amdsmi_get_gpu_process_list, handle)
        links, pcie = (
            ask(device, "traffic", smi.amdsmi_get_link_metrics, handle),
            ask(device, "pcie", smi.amdsmi_get_pcie_info, handle),
        )
        now, heat = smi.AmdSmiTemperatureMetric.CURRENT, smi.AmdSmiTemperatureType
        return Sample(
            pci_bus=device,
            at_ns=time.time_ns(),
            busy_percent=_of(busy, "gfx_activity"),
            memory_busy_percent=_of(busy, "umc_activity"),
            memory_total_bytes=_of(memory, "vram_total", MIB),
            memory_used_bytes=_of(memory, "vram_used", MIB),
            temperature_c=ask(
                device, "temperature", smi.amdsmi_get_temp_metric, handle, heat.HOTSPOT, now
            ),
            memory_temperature_c=ask(
                device, "memory temperature", smi.amdsmi_get_temp_metric, handle, heat.VRAM, now
            ),
            power_mw=_power(ask(device, "power", smi.amdsmi_get_power_info, handle)),
            power_cap_mw=cap if isinstance(cap, Lacking) else cap["power_cap"] // 1_000,
            energy_mj=_energy(ask(device, "energy", smi.amdsmi_get_energy_count, handle)),
            clock_mhz=_of(
                ask(device, "clock", smi.amdsmi_get_clock_info, handle, smi.AmdSmiClkType.GFX),
                "clk",
            ),
            memory_clock_mhz=_of(
                ask(
                    device, "memory clock", smi.amdsmi_get_clock_info, handle, smi.AmdSmiClkType.MEM
                ),
                "clk",
            ),
            ecc_corrected=_of(errors, "correctable_count"),
            ecc_uncorrected=_of(errors, "uncorrectable_count"),
            link_sent_bytes=_traffic(links, "write"),
            link_received_bytes=_traffic(links, "read"),
            pcie_replays=pcie
            if isinstance(pcie, Lacking)
            else _of(pcie["pcie_metric"], "pcie_replay_count"),
            fan_percent=ask(device, "fan", self._fan, handle),
            processes=processes
            if isinstance(processes, Lacking)
            else tuple(map(_process, processes)),
        )

    def events(self) -> Sequence[Event] | Lacking:
        if self.readers is None:
            self.readers = self._listen()
        if isinstance(self.readers, Lacking) or not self.readers:
            return self.readers
        try:
            found = self.readers[0].read(0)  # one reader reads the events of all devices
        except self.smi.AmdSmiException as error:
            return () if getattr(error, "err_code", None) == NO_DATA else Lacking(words(error))
        return [self._event(each) for each in found]

    def control(self, device: str, command: Command) -> Done | Lacking:
        handle = self.handle(device)
        try:
            return self._carry_out(handle, command)
        except self.smi.AmdSmiException as error:
            if judge(error) == LASTING:
                return Lacking(words(error), denied=error.err_code == NO_PERMISSION)
            raise Refusal(words(error)) from error
        finally:
            self.ask.lacking.clear()

    def _carry_out(self, handle: Any, command: Command) -> Done | Lacking:  # noqa: ANN401
        smi = self.smi
        match command:
            case r.SetPowerCap(milliwatts):
                default = (
                    0 if milliwatts else smi.amdsmi_get_power_cap_info(handle)["default_power_cap"]
                )
                smi.amdsmi_set_power_cap(handle, 0, milliwatts * 1_000 or default)
            case r.LockClocks(0, 0):
                smi.amdsmi_set_gpu_perf_level(handle, smi.AmdSmiDevPerfLevel.AUTO)
            case r.LockClocks(low_mhz, high_mhz):
                smi.amdsmi_set_gpu_clk_limit(handle, "sclk", "min", low_mhz)
                smi.amdsmi_set_gpu_clk_limit(handle, "sclk", "max", high_mhz)
            case r.SetPartition(compute, memory):
                return self._partition(handle, compute, memory)
            case r.Reset():
                smi.amdsmi_reset_gpu(handle)
            case r.SetEcc():
                return Lacking("AMD's binding reads ECC but cannot set it")
            case r.SetPersistence() | r.SetComputeMode():
                return Lacking("AMD's driver has no such mode")
            case (
                r.SetMigMode()
                | r.CreateMigInstance()
                | r.DestroyMigInstance()
                | r.ListMigInstances()
            ):
                return Lacking("AMD's devices are divided by partitions")
            case _:
                assert_never(command)
        return Done()

    def _partition(self, handle: Any, compute: str, memory: str) -> Done:  # noqa: ANN401
        smi, kinds = (
            self.smi,
            (self.smi.AmdSmiComputePartitionType, self.smi.AmdSmiMemoryPartitionType),
        )
        for word, known in zip((compute, memory), kinds, strict=True):
            if word and word not in known.__members__:
                raise Refusal(
                    f"partition mode {word!r} is not known: use one of "
                    f"{', '.join(list(known.__members__)[:-1])}"
                )
        if memory:
            smi.amdsmi_set_gpu_memory_partition(handle, kinds[1][memory])
        if compute:
            smi.amdsmi_set_gpu_compute_partition(handle, kinds[0][compute])
        return Done()

    def _part(self, device: str, handle: Any) -> int:  # noqa: ANN401
        """Return the number of the partition on its card; 0 if the card is not divided."""
        found = self.ask(device, "part", self.smi.amdsmi_get_gpu_kfd_info, handle)
        part = 0 if isinstance(found, Lacking) else found["current_partition_id"]
        return int(part) if part != UNKNOWN else 0

    def _links(self, device: str, handle: Any) -> tuple[Link, ...] | Lacking:  # noqa: ANN401
        found = []
        for peer, other in self.handles.items():
            if peer != device:
                link = self.ask(
                    device, f"link {peer}", self.smi.amdsmi_topo_get_link_type, handle, other
                )
                if isinstance(link, Lacking):
                    return link
                found += [Link("xgmi", peer, 1)] if link["type"] == XGMI else []
        return tuple(found)

    def _listen(self) -> list[Any] | Lacking:
        """Return an event reader for each device; Lacking if any device has none."""
        types = [self.smi.AmdSmiEvtNotificationType[name] for name in EVENT_KINDS]
        readers = [
            self.ask(device, "events", self.smi.AmdSmiEventReader, handle, types)
            for device, handle in self.handles.items()
        ]
        return next((each for each in readers if isinstance(each, Lacking)), readers)

    def _event(self, record: Any) -> Event:  # noqa: ANN401
        handle = _number(record["processor_handle"])
        address = next(
            (address for address, known in self.handles.items() if _number(known) == handle), ""
        )
        return Event(
            time.time_ns(),
            "amd",
            address,
            EVENT_KINDS.get(record["event"], r.OTHER),
            text=f"{record['event']} {record['message']}".strip(),
        )

    def _fan(self, handle: Any) -> int:  # noqa: ANN401
        return int(
            self.smi.amdsmi_get_gpu_fan_speed(handle, 0)
            * 100
            // self.smi.amdsmi_get_gpu_fan_speed_max(handle, 0)
        )


def judge(error: Any) -> str:  # noqa: ANN401
    """Classify an error for `vendors.Asking`."""
    code = getattr(error, "err_code", None)
    return LASTING if code in LASTING_CODES else GONE if code in GONE_CODES else PASSING


def _of(found: Any, name: str, factor: int = 1) -> Reading:  # noqa: ANN401
    if isinstance(found, Lacking):
        return found
    return (
        Lacking(f"the driver does not know its {name}")
        if found[name] == UNKNOWN
        else int(found[name]) * factor
    )


def _range(found: Any, ends: tuple[str, str], unit: int = 1) -> tuple[int, int] | Lacking:  # noqa: ANN401
    """Return a range from two fields of a reading; `unit` is their number per our unit."""
    if isinstance(found, Lacking):
        return found
    least, most = found[ends[0]], found[ends[1]]
    known = UNKNOWN not in (least, most) and most
    return (
        (int(least) // unit, int(most) // unit)
        if known
        else Lacking(f"the driver does not know its {ends[1]}")
    )


def _power(found: Any) -> Reading:  # noqa: ANN401
    """Return the power. Newer cards report the current power, older ones an average, in watts."""
    now = _of(found, "current_socket_power", 1_000)
    return _of(found, "average_socket_power", 1_000) if isinstance(now, Lacking) else now


def _energy(found: Any) -> Reading:  # noqa: ANN401
    """Return the energy. `counter_resolution` is the counter's unit in microjoules."""
    return (
        found
        if isinstance(found, Lacking)
        else int(found["energy_accumulator"] * found["counter_resolution"] / 1_000)
    )


def _traffic(found: Any, way: str) -> Reading:  # noqa: ANN401
    if isinstance(found, Lacking):
        return found
    return KIB * sum(
        int(link[way]) for link in found["links"][: found["num_links"]] if link["link_type"] == XGMI
    )


def _process(found: Any) -> Process:  # noqa: ANN401
    return Process(found["pid"], int(found["memory_usage"]["vram_mem"]))


def _number(handle: Any) -> int | None:  # noqa: ANN401
    return ctypes.cast(handle, ctypes.c_void_p).value
