"""Intel's devices by Level Zero's Sysman (pyzes).

The binding answers with codes, and with counters where others have rates: how busy a device is, is
known from the second sample on. It has no error counters, no events and no fans; a reset is asked
of the library itself.
"""

import contextlib
import ctypes
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, assert_never

from services.node_agent.drivers import readings as r
from services.node_agent.drivers.readings import (
    Command,
    Device,
    Done,
    Event,
    Lacking,
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
    given,
    words,
)

# Level Zero's own codes, and what follows of each: no permission, not available, another version,
# not supported; lost, requires a reset.
LASTING_CODES: Final = (0x70010000, 0x70010001, 0x78000002, 0x78000003)
NO_PERMISSION: Final = 0x70010000
GONE_CODES: Final = (0x70000001, 0x70000006)
TWO_SAMPLES: Final = Lacking("it is told by two samples, and this is the first")
NO_EVENTS: Final = Lacking("Intel's binding has no events")
THROTTLES: Final = {
    1 << 0: "power_cap",
    1 << 1: "burst_power_cap",
    1 << 2: "current_limit",
    1 << 3: "thermal_limit",
    1 << 4: "power_supply",
    1 << 5: "clocks_setting",
    1 << 6: "hardware_range",
    1 << 7: "voltage",
    1 << 8: "thermal",
    1 << 9: "power",
}


class LevelZeroError(Exception):
    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} answered {code:#x}")
        self.code = code


class Intel:
    """See `vendors.Vendor`.

    `counters` holds each counter as the last sample of its device saw it, with its time.
    """

    def __init__(self) -> None:
        self.zes: Any = None
        self.handles: dict[str, Any] = {}
        self.parts: dict[tuple[str, str], list[Any]] = {}
        self.counters: dict[tuple[str, str], tuple[int, int]] = {}

    def open(self) -> None:
        with _loader_by_its_name():
            self.zes = import_module("pyzes")
        self.ask = Asking((LevelZeroError, AttributeError), judge, "intel")
        try:
            self._call("zesInit", 0)
        except LevelZeroError as error:
            raise NotThere(words(error)) from error

    def devices(self) -> Sequence[str]:
        try:
            for driver in self._list("zesDriverGet", self.zes.zes_driver_handle_t):
                for handle in self._list("zesDeviceGet", self.zes.zes_device_handle_t, driver):
                    with contextlib.suppress(LevelZeroError):
                        self.handles[self._address(handle)] = handle
        except LevelZeroError as error:
            raise NotThere(words(error)) from error
        return list(self.handles)

    def _address(self, handle: Any) -> str:  # noqa: ANN401  the binding is not typed
        place = self._filled(
            "zesDevicePciGetProperties", self.zes.zes_pci_properties_t, "PCI_PROPERTIES", handle
        ).address
        return f"{place.domain:04x}:{place.bus:02x}:{place.device:02x}.{place.function:x}"

    def describe(self, device: str) -> Device:
        handle = self._handle(device)
        found = self.ask(
            device,
            "properties",
            self._filled,
            "zesDeviceGetProperties",
            self.zes.zes_device_properties_t,
            "DEVICE_PROPERTIES",
            handle,
        )
        if isinstance(found, Lacking):
            raise Lost(f"intel {device} does not tell what it is: {found.why}")
        memory = self.ask(device, "memory", self._memory, device)
        return Device(
            pci_bus=device,
            uuid=f"GPU-{uuid.UUID(bytes=bytes(found.core.uuid.id)[::-1])}",
            index=list(self.handles).index(device),
            vendor="intel",
            model=found.modelName.decode(),
            driver_version=found.driverVersion.decode(),
            memory_bytes=given(memory, (0, 0))[0],
            power_mw=self.ask(device, "power limits", self._power_range, device),
            clocks_mhz=self.ask(device, "clock limits", self._clock_range, device),
        )

    def sample(self, device: str) -> Sample:
        ask, handle = self.ask, self._handle(device)
        memory, clocks = (
            ask(device, "memory", self._memory, device),
            ask(device, "clock", self._clocks, device, self.zes.ZES_FREQ_DOMAIN_GPU),
        )
        memory_clocks = ask(
            device, "memory clock", self._clocks, device, self.zes.ZES_FREQ_DOMAIN_MEMORY
        )
        energy_uj, pcie = (
            ask(device, "energy", self._energy_uj, device),
            ask(device, "pcie", self._pcie, handle),
        )
        return Sample(
            pci_bus=device,
            at_ns=time.time_ns(),
            busy_percent=ask(device, "busy", self._busy, device),
            memory_busy_percent=ask(device, "bandwidth", self._bandwidth, device),
            memory_total_bytes=memory if isinstance(memory, Lacking) else memory[0],
            memory_used_bytes=memory if isinstance(memory, Lacking) else memory[1],
            temperature_c=ask(
                device,
                "temperature",
                self._temperature,
                device,
                ("ZES_TEMP_SENSORS_GPU", "ZES_TEMP_SENSORS_GLOBAL"),
            ),
            memory_temperature_c=ask(
                device,
                "memory temperature",
                self._temperature,
                device,
                ("ZES_TEMP_SENSORS_MEMORY",),
            ),
            power_mw=_per_second(self._grown(device, "energy", energy_uj), 1_000),
            energy_mj=energy_uj if isinstance(energy_uj, Lacking) else energy_uj[0] // 1_000,
            power_cap_mw=ask(device, "cap", lambda: self._sustained(device).limit),
            clock_mhz=clocks if isinstance(clocks, Lacking) else round(clocks.actual),
            memory_clock_mhz=memory_clocks
            if isinstance(memory_clocks, Lacking)
            else round(memory_clocks.actual),
            throttled=clocks
            if isinstance(clocks, Lacking)
            else tuple(word for bit, word in THROTTLES.items() if clocks.throttleReasons & bit),
            pcie_sent_bytes=pcie if isinstance(pcie, Lacking) else pcie.txCounter,
            pcie_received_bytes=pcie if isinstance(pcie, Lacking) else pcie.rxCounter,
            pcie_replays=pcie if isinstance(pcie, Lacking) else pcie.replayCounter,
            processes=ask(device, "processes", self._processes, handle),
        )

    def events(self) -> Sequence[Event] | Lacking:
        return NO_EVENTS

    def control(self, device: str, command: Command) -> Done | Lacking:
        try:
            return self._told(device, command)
        except (LevelZeroError, AttributeError) as error:
            if judge(error) == LASTING:
                return Lacking(words(error), denied=getattr(error, "code", 0) == NO_PERMISSION)
            raise Refusal(words(error)) from error
        finally:
            self.ask.lacking.clear()

    def _told(self, device: str, command: Command) -> Done | Lacking:
        match command:
            case r.SetPowerCap(milliwatts):
                self._set_cap(device, milliwatts)
            case r.LockClocks(low_mhz, high_mhz):
                for domain, known in self._domains(device, self.zes.ZES_FREQ_DOMAIN_GPU):
                    limits = self.zes.zes_freq_range_t(low_mhz or known.min, high_mhz or known.max)
                    self._call("zesFrequencySetRange", domain, ctypes.byref(limits))
            case r.Reset():
                reset = self.zes.getFunctionPointerList("zesDeviceReset")
                reset.argtypes, reset.restype = (
                    (self.zes.zes_device_handle_t, ctypes.c_uint8),
                    ctypes.c_int32,
                )
                if code := reset(self._handle(device), 0):
                    raise LevelZeroError("zesDeviceReset", code)
            case r.SetEcc(on):
                return self._set_ecc(device, on)
            case r.SetPersistence() | r.SetComputeMode():
                return Lacking("Intel's driver has no such mode")
            case (
                r.SetMigMode()
                | r.CreateMigInstance()
                | r.DestroyMigInstance()
                | r.ListMigInstances()
                | r.SetPartition()
            ):
                return Lacking("Intel's binding cannot divide a device")
            case _:
                assert_never(command)
        return Done()

    # What a sample is made of. Each raises LevelZeroError, or AttributeError for a function that
    # the library does not have.

    def _memory(self, device: str) -> tuple[int, int]:
        """All of it, and what is used."""
        found = [
            self._filled("zesMemoryGetState", self.zes.zes_mem_state_t, "MEM_STATE", each)
            for each in self._parts(device, "MemoryModules", "mem")
        ]
        size = sum(each.size for each in found)
        return size, size - sum(each.free for each in found)

    def _bandwidth(self, device: str) -> Reading:
        """Of what the memory could move since the last sample."""
        part, most = [], 0
        for each in self._parts(device, "MemoryModules", "mem"):
            found = self._filled("zesMemoryGetBandwidth", self.zes.zes_mem_bandwidth_t, "", each)
            part.append((found.readCounter + found.writeCounter, found.timestamp))
            most += found.maxBandwidth
        moved = _per_second(
            self._grown(
                device,
                "bandwidth",
                (sum(each for each, _ in part), part[0][1]) if part else TWO_SAMPLES,
            ),
            1_000_000,
        )
        return (
            moved if isinstance(moved, Lacking) or not most else min(100, int(100 * moved // most))
        )

    def _busy(self, device: str) -> Reading:
        groups = self._parts(device, "EngineGroups", "engine")
        engines = {self._engine_type(each): each for each in groups}
        engine = engines.get(
            self.zes.ZES_ENGINE_GROUP_ALL, engines.get(self.zes.ZES_ENGINE_GROUP_COMPUTE_ALL)
        )
        if engine is None:
            return Lacking("no group of engines tells how busy it is")
        found = self._filled("zesEngineGetActivity", self.zes.zes_engine_stats_t, "", engine)
        return _per_second(self._grown(device, "busy", (found.activeTime, found.timestamp)), 100)

    def _engine_type(self, engine: Any) -> Any:  # noqa: ANN401  the binding is not typed
        kind = self.zes.zes_engine_properties_t
        return self._filled("zesEngineGetProperties", kind, "ENGINE_PROPERTIES", engine).type

    def _temperature(self, device: str, sensors: Sequence[str]) -> Reading:
        kinds = [getattr(self.zes, name) for name in sensors]
        for sensor in self._parts(device, "TemperatureSensors", "temp"):
            if (
                self._filled(
                    "zesTemperatureGetProperties",
                    self.zes.zes_temp_properties_t,
                    "TEMP_PROPERTIES",
                    sensor,
                ).type
                in kinds
            ):
                degrees: float = self._filled(
                    "zesTemperatureGetState", ctypes.c_double, "", sensor
                ).value
                return round(degrees)
        return Lacking("no such sensor")

    def _energy_uj(self, device: str) -> tuple[int, int] | Lacking:
        domains = self._parts(device, "PowerDomains", "pwr")
        if not domains:
            return Lacking("no power domain")
        found = self._filled(
            "zesPowerGetEnergyCounter", self.zes.zes_power_energy_counter_t, "", domains[0]
        )
        return found.energy, found.timestamp

    def _sustained(self, device: str) -> Any:  # noqa: ANN401  the binding is not typed
        """The limit that is meant by a power cap."""
        for limit in self._limits(device):
            if limit.level == self.zes.ZES_POWER_LEVEL_SUSTAINED:
                return limit
        raise LevelZeroError("no sustained power limit: zesPowerGetLimitsExt", LASTING_CODES[-1])

    def _limits(self, device: str) -> Any:  # noqa: ANN401
        domains = self._parts(device, "PowerDomains", "pwr")
        if not domains:
            raise LevelZeroError("no power domain: zesDeviceEnumPowerDomains", LASTING_CODES[-1])
        return self._list(
            "zesPowerGetLimitsExt",
            self.zes.zes_power_limit_ext_desc_t,
            domains[0],
            stype="POWER_LIMIT_EXT_DESC",
        )

    def _set_cap(self, device: str, milliwatts: int) -> None:
        domain, limit = self._parts(device, "PowerDomains", "pwr")[0], self._sustained(device)
        known = self._filled(
            "zesPowerGetProperties", self.zes.zes_power_properties_t, "POWER_PROPERTIES", domain
        )
        limit.limit = milliwatts or known.defaultLimit
        self._call(
            "zesPowerSetLimitsExt", domain, ctypes.byref(ctypes.c_uint32(1)), ctypes.byref(limit)
        )

    def _power_range(self, device: str) -> tuple[int, int] | Lacking:
        """As far as the driver knows both ends: -1 is no limit."""
        domains = self._parts(device, "PowerDomains", "pwr")
        if not domains:
            return Lacking("no power domain")
        known = self._filled(
            "zesPowerGetProperties", self.zes.zes_power_properties_t, "POWER_PROPERTIES", domains[0]
        )
        told = known.minLimit >= 0 and known.maxLimit > 0
        return (
            (known.minLimit, known.maxLimit)
            if told
            else Lacking("the driver does not know its limits")
        )

    def _clock_range(self, device: str) -> tuple[int, int] | Lacking:
        for _, known in self._domains(device, self.zes.ZES_FREQ_DOMAIN_GPU):
            return (round(known.min), round(known.max))
        return Lacking("no such clock")

    def _set_ecc(self, device: str, on: bool | None) -> Done | Lacking:
        """What it is by itself the driver does not say."""
        if on is None:
            return Lacking("Intel's driver does not say how ECC is by default")
        zes = self.zes
        wish = zes.zes_device_ecc_desc_t()
        wish.stype = zes.ZES_STRUCTURE_TYPE_DEVICE_ECC_DESC
        wish.state = zes.ZES_DEVICE_ECC_STATE_ENABLED if on else zes.ZES_DEVICE_ECC_STATE_DISABLED
        found = zes.zes_device_ecc_properties_t()
        found.stype = zes.ZES_STRUCTURE_TYPE_DEVICE_ECC_PROPERTIES
        self._call(
            "zesDeviceSetEccState", self._handle(device), ctypes.byref(wish), ctypes.byref(found)
        )
        return Done(
            note="" if found.currentState == found.pendingState else "it counts after a reset"
        )

    def _domains(self, device: str, kind: int) -> Iterator[tuple[Any, Any]]:
        for domain in self._parts(device, "FrequencyDomains", "freq"):
            known = self._filled(
                "zesFrequencyGetProperties",
                self.zes.zes_freq_properties_t,
                "FREQ_PROPERTIES",
                domain,
            )
            if known.type == kind:
                yield domain, known

    def _clocks(self, device: str, kind: int) -> Any:  # noqa: ANN401
        for domain, _ in self._domains(device, kind):
            return self._filled(
                "zesFrequencyGetState", self.zes.zes_freq_state_t, "FREQ_STATE", domain
            )
        return Lacking("no such clock")

    def _pcie(self, handle: Any) -> Any:  # noqa: ANN401
        return self._filled("zesDevicePciGetStats", self.zes.zes_pci_stats_t, "", handle)

    def _processes(self, handle: Any) -> tuple[Process, ...]:  # noqa: ANN401
        found = self._list(
            "zesDeviceProcessesGetState",
            self.zes.zes_process_state_t,
            handle,
            stype="PROCESS_STATE",
        )
        return tuple(Process(each.processId, each.memSize) for each in found)

    # How the binding is called.

    def _handle(self, device: str) -> Any:  # noqa: ANN401
        if device not in self.handles:
            raise Lost(f"intel {device} is lost: Level Zero does not know it any more")
        return self.handles[device]

    def _parts(self, device: str, kind: str, short: str) -> list[Any]:
        """A device's sensors, engines, domains: they stay."""
        if (device, kind) not in self.parts:
            self.parts[device, kind] = self._list(
                f"zesDeviceEnum{kind}",
                getattr(self.zes, f"zes_{short}_handle_t"),
                self._handle(device),
            )
        return self.parts[device, kind]

    def _grown(
        self, device: str, name: str, now: tuple[int, int] | Lacking
    ) -> tuple[int, int] | Lacking:
        """By how much, in how many microseconds."""
        if isinstance(now, Lacking):
            return now
        before = self.counters.get((device, name))
        self.counters[device, name] = now
        return (
            TWO_SAMPLES
            if before is None or now[1] <= before[1]
            else (now[0] - before[0], now[1] - before[1])
        )

    def _list(self, name: str, kind: Callable[[], Any], *of: Any, stype: str = "") -> list[Any]:  # noqa: ANN401
        """Asked twice: how many there are, then for all of them."""
        count = ctypes.c_uint32(0)
        self._call(name, *of, ctypes.byref(count), None)
        found = (kind * count.value)()  # type: ignore[operator]
        for each in found if stype else ():
            each.stype = getattr(self.zes, f"ZES_STRUCTURE_TYPE_{stype}")
        if count.value:
            self._call(name, *of, ctypes.byref(count), found)
        return list(found[: count.value])

    def _filled(self, name: str, kind: Callable[[], Any], stype: str, *of: Any) -> Any:  # noqa: ANN401
        found = kind()
        if stype:
            found.stype = getattr(self.zes, f"ZES_STRUCTURE_TYPE_{stype}")
        self._call(name, *of, ctypes.byref(found))
        return found

    def _call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        if code := getattr(self.zes, name)(*arguments):
            raise LevelZeroError(name, code)


def judge(error: Any) -> str:  # noqa: ANN401
    """See `vendors.Asking`. A function that the library does not have is an AttributeError."""
    if isinstance(error, AttributeError) or error.code in LASTING_CODES:
        return LASTING
    return GONE if error.code in GONE_CODES else PASSING


@contextlib.contextmanager
def _loader_by_its_name() -> Iterator[None]:
    """The binding asks for the loader at the place that one distribution has it; the dynamic linker
    finds it anywhere.
    """
    real = ctypes.CDLL

    def find(name: str, *arguments: Any) -> ctypes.CDLL:  # noqa: ANN401
        return real(Path(name).name, *arguments)

    ctypes.CDLL = find  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        ctypes.CDLL = real  # type: ignore[misc]


def _per_second(grown: tuple[int, int] | Lacking, factor: int) -> Reading:
    """Of what grew in microseconds."""
    return grown if isinstance(grown, Lacking) else grown[0] * factor // grown[1]
