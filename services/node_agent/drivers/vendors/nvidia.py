"""NVIDIA's devices by NVML (nvidia-ml-py).

Most of a sample is one call (field values), for each call into the driver costs. NVML's Xid events
are taken up as they stand; what an Xid means is not known here.
"""

import ctypes
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

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
    given,
    nvidia_control,
    nvidia_fabric,
    nvidia_links,
    nvidia_mig,
    pci_address,
    words,
)

EVENTS_MAX: Final = 64
# One sample of this many also reads the counters of single links and of SRAM.
SELDOM: Final = 10
# The older call counts what the driver keeps for itself as used.
NO_RESERVED: Final = Lacking("this driver does not tell it apart from what is used")
# NVML counts a link's traffic in KiB.
LINK_UNIT: Final = 1 << 10

# NVML's own codes, and what follows of each: not supported, no such function, another struct, no
# permission; lost, reset required.
LASTING_CODES: Final = (3, 4, 13, 22, 25, 26)
GONE_CODES: Final = (15, 16, 28)

# Field of a sample -> NVML's field value, with its scope: all links.
ALL_LINKS: Final = 0xFFFFFFFF
FIELDS: Final[dict[str, tuple[int, int]]] = {
    "memory_temperature_c": (82, 0),
    "energy_mj": (83, 0),
    "ecc_corrected": (3, 0),
    "ecc_uncorrected": (4, 0),
    "remapped_corrected": (142, 0),
    "remapped_uncorrected": (143, 0),
    "remap_pending": (144, 0),
    "remap_failed": (145, 0),
    "recovery_action": (230, 0),
    "link_sent_bytes": (138, ALL_LINKS),
    "link_received_bytes": (139, ALL_LINKS),
    "pcie_sent_bytes": (197, 0),
    "pcie_received_bytes": (198, 0),
    "pcie_replays": (94, 0),
}
# Cyclic redundancy, replay and recovery of all links together, of drivers that do not tell links
# apart.
LINK_ERROR_FIELDS: Final = (38, 52, 59)

THROTTLES: Final = {
    0x1: "idle",
    0x2: "clocks_setting",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "thermal_software",
    0x40: "thermal_hardware",
    0x80: "power_brake",
    0x100: "display_clock",
}
# An event that NVML attributes to no MIG instance.
NO_INSTANCE: Final = 0xFFFFFFFF
# Of corrected errors (0x1) the counter says more.
EVENT_KINDS: Final = {0x8: r.XID, 0x2: r.ECC}


class Nvidia:
    """See `vendors.Vendor`."""

    def __init__(self) -> None:
        self.nvml: Any = None
        self.handles: dict[str, Any] = {}
        self.indexes: dict[str, int] = {}
        self.waiting: Any = None
        self.links = nvidia_links.Links(self)
        self.seldom: dict[str, tuple[int, dict[str, Any]]] = {}

    def open(self) -> None:
        self.nvml = nvml = import_module("pynvml")
        self.ask = Asking((nvml.NVMLError,), judge, "nvidia")
        try:
            nvml.nvmlInit()
        except nvml.NVMLError as error:
            raise NotThere(words(error)) from error
        self.handles.clear()
        self.waiting = None

    def close(self) -> None:
        """Before a reset: nothing may have the device open."""
        self.nvml.nvmlShutdown()

    def devices(self) -> Sequence[str]:
        nvml = self.nvml
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                address = pci_address(nvml.nvmlDeviceGetPciInfo(handle).busId)
                self.handles[address], self.indexes[address] = handle, index
        return list(self.handles)

    def handle(self, device: str) -> Any:  # noqa: ANN401  the binding is not typed
        """By its address, so that no other device is asked."""
        if device not in self.handles:
            try:
                self.handles[device] = self.nvml.nvmlDeviceGetHandleByPciBusId(device.encode())
                self.indexes[device] = self.nvml.nvmlDeviceGetIndex(self.handles[device])
            except self.nvml.NVMLError as error:
                raise Lost(f"nvidia {device} is lost: {words(error)}") from error
        return self.handles[device]

    def describe(self, device: str) -> Device:
        nvml, handle = self.nvml, self.handle(device)
        self.links.forget(device)
        self.seldom.pop(device, None)
        memory = self._memory(device, handle)
        mig = self.ask(device, "mig", nvml.nvmlDeviceGetMigMode, handle)
        return Device(
            pci_bus=device,
            uuid=self._must(device, "uuid", nvml.nvmlDeviceGetUUID, handle),
            index=self.indexes[device],
            vendor="nvidia",
            model=self._must(device, "model", nvml.nvmlDeviceGetName, handle),
            driver_version=given(self.ask(device, "driver", nvml.nvmlSystemGetDriverVersion), ""),
            memory_bytes=0 if isinstance(memory, Lacking) else memory.total,
            compute_capability=given(
                self.ask(device, "capability", nvml.nvmlDeviceGetCudaComputeCapability, handle),
                (0, 0),
            ),
            mig=mig if isinstance(mig, Lacking) else bool(mig[0]),
            mig_profiles=()
            if isinstance(mig, Lacking)
            else tuple(profile.name for profile in nvidia_mig.profiles(nvml, handle)),
            links=self._links(device, handle),
            persistent=_flag(
                self.ask(device, "persistence", nvml.nvmlDeviceGetPersistenceMode, handle)
            ),
            versions=self._versions(device),
            **nvidia_control.limits(self, device, handle),
        )

    def sample(self, device: str) -> Sample:
        nvml, handle, ask = self.nvml, self.handle(device), self.ask
        used, memory = (
            ask(device, "utilization", nvml.nvmlDeviceGetUtilizationRates, handle),
            self._memory(device, handle),
        )
        reasons = ask(device, "throttled", nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        processes = ask(device, "processes", nvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
        return Sample(
            pci_bus=device,
            at_ns=time.time_ns(),
            busy_percent=used if isinstance(used, Lacking) else used.gpu,
            memory_busy_percent=used if isinstance(used, Lacking) else used.memory,
            encoder_percent=_first(
                ask(device, "encoder", nvml.nvmlDeviceGetEncoderUtilization, handle)
            ),
            decoder_percent=_first(
                ask(device, "decoder", nvml.nvmlDeviceGetDecoderUtilization, handle)
            ),
            memory_total_bytes=memory if isinstance(memory, Lacking) else memory.total,
            memory_used_bytes=memory if isinstance(memory, Lacking) else memory.used,
            memory_reserved_bytes=memory
            if isinstance(memory, Lacking)
            else getattr(memory, "reserved", NO_RESERVED),
            temperature_c=ask(device, "temperature", self._temperature, handle),
            power_mw=ask(device, "power", nvml.nvmlDeviceGetPowerUsage, handle),
            power_cap_mw=ask(device, "cap", nvml.nvmlDeviceGetEnforcedPowerLimit, handle),
            clock_mhz=ask(device, "clock", nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=ask(
                device, "memory clock", nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM
            ),
            fan_percent=ask(device, "fan", nvml.nvmlDeviceGetFanSpeed, handle),
            throttled=reasons
            if isinstance(reasons, Lacking)
            else tuple(word for bit, word in THROTTLES.items() if reasons & bit),
            processes=processes
            if isinstance(processes, Lacking)
            else tuple(map(_process, processes)),
            fabric=nvidia_fabric.fabric(self, device, handle),
            **self._fields(device, handle) | self._seldom(device, handle),
        )

    def events(self) -> Sequence[Event] | Lacking:
        nvml = self.nvml
        if self.waiting is None:
            self.waiting = self.ask("", "events", self._register)
        if isinstance(self.waiting, Lacking):
            return self.waiting
        found: list[Event] = []
        while len(found) < EVENTS_MAX:
            try:
                data = nvml.nvmlEventSetWait_v2(self.waiting, 0)
            except nvml.NVMLError_Timeout:
                break
            except nvml.NVMLError as error:
                return Lacking(words(error))
            found.append(self._event(data))
        return found

    def control(self, device: str, command: Command) -> Done | Lacking:
        return nvidia_control.control(self, device, command)

    def _register(self) -> Any:  # noqa: ANN401
        """Of each device the events that it knows."""
        nvml, wanted = self.nvml, sum(EVENT_KINDS)
        waiting = nvml.nvmlEventSetCreate()
        for device in self.devices():
            with suppress(Lost):
                known = given(
                    self.ask(
                        device,
                        "event types",
                        nvml.nvmlDeviceGetSupportedEventTypes,
                        self.handles[device],
                    ),
                    0,
                )
                self.ask(
                    device,
                    "register",
                    nvml.nvmlDeviceRegisterEvents,
                    self.handles[device],
                    known & wanted,
                    waiting,
                )
        return waiting

    def _event(self, data: Any) -> Event:  # noqa: ANN401
        address = next(
            (address for address, handle in self.handles.items() if _same(handle, data.device)), ""
        )
        kind = EVENT_KINDS.get(data.eventType, r.OTHER)
        instance = data.gpuInstanceId if data.gpuInstanceId != NO_INSTANCE else None
        return Event(
            time.time_ns(),
            "nvidia",
            address,
            kind,
            data.eventData,
            f"NVML event {data.eventType:#x}",
            instance,
        )

    def _versions(self, device: str) -> dict[str, str]:
        """The versions of NVML and of CUDA's driver interface, as far as the driver tells them."""
        nvml = self.nvml
        library = self.ask(device, "NVML's version", nvml.nvmlSystemGetNVMLVersion)
        cuda = self.ask(device, "CUDA's version", nvml.nvmlSystemGetCudaDriverVersion_v2)
        found = {} if isinstance(library, Lacking) else {"nvml": str(library)}
        return (
            found
            if isinstance(cuda, Lacking)
            else {**found, "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}"}
        )

    def _memory(self, device: str, handle: Any) -> Any:  # noqa: ANN401
        """What the driver keeps for itself is not counted as used where it tells it apart (v2)."""
        found = self.ask(
            device, "memory v2", self.nvml.nvmlDeviceGetMemoryInfo, handle, self.nvml.nvmlMemory_v2
        )
        return (
            self.ask(device, "memory", self.nvml.nvmlDeviceGetMemoryInfo, handle)
            if isinstance(found, Lacking)
            else found
        )

    def _temperature(self, handle: Any) -> int:  # noqa: ANN401
        """By the call that drivers of today have, else the one before it."""
        nvml, sensor = self.nvml, self.nvml.NVML_TEMPERATURE_GPU
        try:
            return int(nvml.nvmlDeviceGetTemperatureV(handle, sensor))
        except (
            nvml.NVMLError_FunctionNotFound,
            nvml.NVMLError_ArgumentVersionMismatch,
            nvml.NVMLError_NotSupported,
        ):
            return int(nvml.nvmlDeviceGetTemperature(handle, sensor))

    def _fields(self, device: str, handle: Any) -> dict[str, Any]:  # noqa: ANN401
        """Each has a verdict of its own."""
        wanted = [*FIELDS.values(), *((number, ALL_LINKS) for number in LINK_ERROR_FIELDS)]
        found = self.ask(device, "fields", self.nvml.nvmlDeviceGetFieldValues, handle, wanted)
        if isinstance(found, Lacking):
            return dict.fromkeys((*FIELDS, "link_errors", "link_counts"), found)
        values = [self.field(each) for each in found]
        named: dict[str, Reading] = dict(zip(FIELDS, values, strict=False))
        for name in ("link_sent_bytes", "link_received_bytes"):
            named[name] = _times(named[name], LINK_UNIT)
        return {**named, "link_errors": _sum(values[len(FIELDS) :])}

    def _seldom(self, device: str, handle: Any) -> dict[str, Any]:  # noqa: ANN401
        """Counters that change seldom and take many reads of the device: those of each link, and of
        the SRAM.

        In between the last values stay.
        """
        samples, found = self.seldom.get(device, (0, {}))
        if samples % SELDOM == 0:
            found = self._sram(device, handle) | self.links.read(device, handle)
        self.seldom[device] = samples + 1, found
        return found

    def _sram(self, device: str, handle: Any) -> dict[str, Any]:  # noqa: ANN401
        """Parity-protected and SECDED memory together, since the driver was loaded."""
        nvml = self.nvml
        found = self.ask(device, "sram", self._sram_status, nvml, handle)
        if isinstance(found, Lacking):
            return {"sram_uncorrected": found, "sram_threshold": found}
        uncorrected = found.volatileUncParity + found.volatileUncSecDed
        return {
            "sram_uncorrected": uncorrected,
            "sram_threshold": int(found.bThresholdExceeded != 0),
        }

    def _sram_status(self, nvml: Any, handle: Any) -> Any:  # noqa: ANN401
        found = nvml.c_nvmlEccSramErrorStatus_v1_t()
        nvml.nvmlDeviceGetSramEccErrorStatus(handle, ctypes.byref(found))
        return found

    def field(self, field: Any) -> Reading:  # noqa: ANN401
        """The value of one field, or why there is none."""
        if field.nvmlReturn != self.nvml.NVML_SUCCESS:
            return Lacking(words(self.nvml.NVMLError(field.nvmlReturn)))
        name = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[field.valueType]
        return int(getattr(field.value, name))

    def _links(self, device: str, handle: Any) -> tuple[Link, ...] | Lacking:  # noqa: ANN401
        """Active NVLinks by what is at their other end."""
        nvml = self.nvml
        ends: dict[str, int] = {}
        for link in range(nvml.NVML_NVLINK_MAX_LINKS):
            state = self.ask(device, f"link {link}", nvml.nvmlDeviceGetNvLinkState, handle, link)
            if isinstance(state, Lacking):
                if link == 0:
                    return state
                break
            if state:
                peer = self._peer(device, handle, link)
                ends[peer] = ends.get(peer, 0) + 1
        return tuple(Link("nvlink", peer, count) for peer, count in ends.items())

    def _peer(self, device: str, handle: Any, link: int) -> str:  # noqa: ANN401
        nvml = self.nvml
        if (
            self.ask(device, "link end", nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, link)
            == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
        ):
            return "switch"
        end = self.ask(device, "link peer", nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
        return "" if isinstance(end, Lacking) else pci_address(end.busId)

    def _must(self, device: str, name: str, call: Any, handle: Any) -> str:  # noqa: ANN401
        """Without it there is no device."""
        found = self.ask(device, name, call, handle)
        if isinstance(found, Lacking):
            raise Lost(f"nvidia {device} does not tell its {name}: {found.why}")
        return str(found)


def judge(error: Any) -> str:  # noqa: ANN401
    """See `vendors.Asking`."""
    return (
        LASTING if error.value in LASTING_CODES else GONE if error.value in GONE_CODES else PASSING
    )


def _first(found: Any) -> Reading:  # noqa: ANN401
    return found if isinstance(found, Lacking) else int(found[0])


def _flag(found: Any) -> bool | Lacking:  # noqa: ANN401
    return found if isinstance(found, Lacking) else bool(found)


def _process(found: Any) -> Process:  # noqa: ANN401
    unknown = Lacking("NVML does not know it of this process")
    return Process(found.pid, unknown if found.usedGpuMemory is None else found.usedGpuMemory)


def _same(one: Any, other: Any) -> bool:  # noqa: ANN401
    return ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value


def _times(value: Reading, factor: int) -> Reading:
    return value if isinstance(value, Lacking) else value * factor


def _sum(values: Sequence[Reading]) -> Reading:
    """Of those that there are."""
    there = [value for value in values if not isinstance(value, Lacking)]
    return sum(there) if there else values[0]
