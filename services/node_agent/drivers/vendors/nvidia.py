"""NVIDIA's devices by NVML (nvidia-ml-py).

Most of a sample is one call (field values), because each call into the driver costs time. Xid
events are passed on as they are; their meaning is in the catalogue.
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
    Reading,
    Sample,
)
from services.node_agent.drivers.vendors import (
    Asking,
    Lost,
    NotThere,
    given,
    nvidia_control,
    nvidia_fabric,
    nvidia_links,
    nvidia_mig,
    nvidia_profiling,
    pci_address,
    words,
)
from services.node_agent.drivers.vendors.nvidia_tables import (
    ALL_LINKS,
    EVENT_KINDS,
    EVENTS_MAX,
    FIELDS,
    LINK_ERROR_FIELDS,
    LINK_UNIT,
    NO_INSTANCE,
    NO_RESERVED,
    THROTTLES,
    first_of,
    flag_of,
    is_same,
    judge,
    process_of,
    scaled,
    sum_of_known,
)

# One sample in so many also reads the counters of single links, of SRAM and for profiling.
SELDOM: Final = 10


class Nvidia:
    """NVIDIA's binding; see `vendors.Vendor`."""

    def __init__(self) -> None:
        self.nvml: Any = None
        self.handles: dict[str, Any] = {}
        self.indexes: dict[str, int] = {}
        self.waiting: Any = None
        self.links = nvidia_links.Links(self)
        self.profiling = nvidia_profiling.Profiling(self)
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
        """Close NVML before a reset: no process may have the device open."""
        self.profiling.close()
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
        """Return the handle of a device by its address, so that no other device is asked."""
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
            uuid=self._required(device, "uuid", nvml.nvmlDeviceGetUUID, handle),
            index=self.indexes[device],
            vendor="nvidia",
            model=self._required(device, "model", nvml.nvmlDeviceGetName, handle),
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
            persistent=flag_of(
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
            encoder_percent=first_of(
                ask(device, "encoder", nvml.nvmlDeviceGetEncoderUtilization, handle)
            ),
            decoder_percent=first_of(
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
            else tuple(map(process_of, processes)),
            fabric=nvidia_fabric.fabric(self, device, handle),
            **self._fields(device, handle) | self._rare_counters(device, handle),
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
        """Register for the events that each device supports."""
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
            (address for address, handle in self.handles.items() if is_same(handle, data.device)),
            "",
        )
        kind = EVENT_KINDS.get(data.eventType, r.OTHER)
        instance = data.gpuInstanceId if data.gpuInstanceId != NO_INSTANCE else None
        return Event(
            at_ns=time.time_ns(),
            vendor="nvidia",
            pci_bus=address,
            kind=kind,
            number=data.eventData,
            text=f"NVML event {data.eventType:#x}",
            instance=instance,
        )

    def _versions(self, device: str) -> dict[str, str]:
        """Return the versions of NVML and CUDA, as far as the driver reports them."""
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
        """Return the memory. The v2 call does not count the driver's reserved memory as used."""
        found = self.ask(
            device, "memory v2", self.nvml.nvmlDeviceGetMemoryInfo, handle, self.nvml.nvmlMemory_v2
        )
        return (
            self.ask(device, "memory", self.nvml.nvmlDeviceGetMemoryInfo, handle)
            if isinstance(found, Lacking)
            else found
        )

    def _temperature(self, handle: Any) -> int:  # noqa: ANN401
        """Return the temperature by the newer call, else by the older one."""
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
        """Return the field values; each has its own verdict."""
        wanted = [*FIELDS.values(), *((number, ALL_LINKS) for number in LINK_ERROR_FIELDS)]
        found = self.ask(device, "fields", self.nvml.nvmlDeviceGetFieldValues, handle, wanted)
        if isinstance(found, Lacking):
            return dict.fromkeys((*FIELDS, "link_errors", "link_counts"), found)
        values = [self.field(each) for each in found]
        named: dict[str, Reading] = dict(zip(FIELDS, values, strict=False))
        for name in ("link_sent_bytes", "link_received_bytes"):
            named[name] = scaled(named[name], LINK_UNIT)
        return {**named, "link_errors": sum_of_known(values[len(FIELDS) :])}

    def _rare_counters(self, device: str, handle: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return counters that change seldom or take many reads: those of each link, of the SRAM,
        and for profiling.

        The last values stay in between.
        """
        samples, found = self.seldom.get(device, (0, {}))
        if samples % SELDOM == 0:
            found = (
                self._sram(device, handle)
                | self.links.read(device, handle)
                | self.profiling.read(device, handle)
            )
        self.seldom[device] = samples + 1, found
        return found

    def _sram(self, device: str, handle: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return errors of parity-protected and SECDED memory together, since the driver was
        loaded.
        """
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
        """Return the value of a field, or why there is none."""
        if field.nvmlReturn != self.nvml.NVML_SUCCESS:
            return Lacking(words(self.nvml.NVMLError(field.nvmlReturn)))
        name = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")[field.valueType]
        return int(getattr(field.value, name))

    def _links(self, device: str, handle: Any) -> tuple[Link, ...] | Lacking:  # noqa: ANN401
        """Return the active NVLinks by the device at their other end."""
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

    def _required(self, device: str, name: str, call: Any, handle: Any) -> str:  # noqa: ANN401
        """Return a property without which there is no device. Raises Lost."""
        found = self.ask(device, name, call, handle)
        if isinstance(found, Lacking):
            raise Lost(f"nvidia {device} does not tell its {name}: {found.why}")
        return str(found)
