"""Intel's devices by Level Zero's Sysman (pyzes).

The binding returns codes, and counters where others have rates, so rates are known from the second
sample on. It has no error counters, no events and no fans. A reset calls the library directly.
"""

import contextlib
import ctypes
import time
import uuid
from collections.abc import Iterator, Sequence
from importlib import import_module
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
    LASTING,
    Asking,
    Lost,
    NotThere,
    Refusal,
    given,
    words,
)
from services.node_agent.drivers.vendors.intel_calls import (
    LASTING_CODES,
    NO_PERMISSION,
    THROTTLES,
    TWO_SAMPLES,
    Calls,
    LevelZeroError,
    judge,
    loader_by_its_name,
    per_second,
)

LIST_DEVICES: Final = "zesDeviceGet"
NO_EVENTS: Final = Lacking("Intel's binding has no events")


class Intel:
    """The driver of Intel's devices; see `vendors.Vendor`."""

    def __init__(self) -> None:
        self.calls = Calls()

    def open(self) -> None:
        with loader_by_its_name():
            self.calls.zes = import_module("pyzes")
        self.ask = Asking((LevelZeroError, AttributeError), judge, "intel")
        try:
            self.calls.call("zesInit", 0)
        except LevelZeroError as error:
            raise NotThere(words(error)) from error

    def devices(self) -> Sequence[str]:
        try:
            drivers = self.calls.listed("zesDriverGet", self.calls.zes.zes_driver_handle_t)
            kind = self.calls.zes.zes_device_handle_t
            found = [each for one in drivers for each in self.calls.listed(LIST_DEVICES, kind, one)]
        except LevelZeroError as error:
            raise NotThere(words(error)) from error
        for index, handle in enumerate(found):
            with contextlib.suppress(LevelZeroError):
                address = self._address(handle)
                self.calls.handles[address], self.calls.indexes[address] = handle, index
        return list(self.calls.handles)

    def _address(self, handle: Any) -> str:  # noqa: ANN401  the binding is not typed
        place = self.calls.filled(
            "zesDevicePciGetProperties",
            self.calls.zes.zes_pci_properties_t,
            "PCI_PROPERTIES",
            handle,
        ).address
        return f"{place.domain:04x}:{place.bus:02x}:{place.device:02x}.{place.function:x}"

    def describe(self, device: str) -> Device:
        handle = self.calls.handle(device)
        found = self.ask(
            device,
            "properties",
            self.calls.filled,
            "zesDeviceGetProperties",
            self.calls.zes.zes_device_properties_t,
            "DEVICE_PROPERTIES",
            handle,
        )
        if isinstance(found, Lacking):
            raise Lost(f"intel {device} does not tell what it is: {found.why}")
        memory = self.ask(device, "memory", self._memory, device)
        return Device(
            pci_bus=device,
            uuid=f"GPU-{uuid.UUID(bytes=bytes(found.core.uuid.id)[::-1])}",
            index=self.calls.indexes[device],
            vendor="intel",
            model=found.modelName.decode(),
            driver_version=found.driverVersion.decode(),
            memory_bytes=given(memory, (0, 0))[0],
            power_mw=self.ask(device, "power limits", self._power_range, device),
            clocks_mhz=self.ask(device, "clock limits", self._clock_range, device),
        )

    def sample(self, device: str) -> Sample:
        ask, handle = self.ask, self.calls.handle(device)
        memory, clocks = (
            ask(device, "memory", self._memory, device),
            ask(device, "clock", self._clocks, device, self.calls.zes.ZES_FREQ_DOMAIN_GPU),
        )
        memory_clocks = ask(
            device, "memory clock", self._clocks, device, self.calls.zes.ZES_FREQ_DOMAIN_MEMORY
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
            power_mw=per_second(self.calls.grown(device, "energy", energy_uj), 1_000),
            energy_mj=energy_uj if isinstance(energy_uj, Lacking) else energy_uj[0] // 1_000,
            power_cap_mw=ask(device, "cap", lambda: self._sustained_limit(device).limit),
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
            return self._apply(device, command)
        except (LevelZeroError, AttributeError) as error:
            if judge(error) == LASTING:
                return Lacking(words(error), denied=getattr(error, "code", 0) == NO_PERMISSION)
            raise Refusal(words(error)) from error
        finally:
            self.ask.lacking.clear()

    def _apply(self, device: str, command: Command) -> Done | Lacking:
        match command:
            case r.SetPowerCap(milliwatts):
                self._set_cap(device, milliwatts)
            case r.LockClocks(low_mhz, high_mhz):
                for domain, known in self._domains(device, self.calls.zes.ZES_FREQ_DOMAIN_GPU):
                    limits = self.calls.zes.zes_freq_range_t(
                        low_mhz or known.min, high_mhz or known.max
                    )
                    self.calls.call("zesFrequencySetRange", domain, ctypes.byref(limits))
            case r.Reset():
                reset = self.calls.zes.getFunctionPointerList("zesDeviceReset")
                reset.argtypes, reset.restype = (
                    (self.calls.zes.zes_device_handle_t, ctypes.c_uint8),
                    ctypes.c_int32,
                )
                if code := reset(self.calls.handle(device), 0):
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

    # The parts of a sample. Each raises LevelZeroError, or AttributeError for a function that the
    # library does not have.

    def _memory(self, device: str) -> tuple[int, int]:
        """Return the total and the used memory."""
        found = [
            self.calls.filled(
                "zesMemoryGetState", self.calls.zes.zes_mem_state_t, "MEM_STATE", each
            )
            for each in self.calls.parts_of(device, "MemoryModules", "mem")
        ]
        size = sum(each.size for each in found)
        return size, size - sum(each.free for each in found)

    def _bandwidth(self, device: str) -> Reading:
        """Return the memory traffic since the last sample, in percent of the possible."""
        part, most = [], 0
        for each in self.calls.parts_of(device, "MemoryModules", "mem"):
            found = self.calls.filled(
                "zesMemoryGetBandwidth", self.calls.zes.zes_mem_bandwidth_t, "", each
            )
            part.append((found.readCounter + found.writeCounter, found.timestamp))
            most += found.maxBandwidth
        moved = per_second(
            self.calls.grown(
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
        groups = self.calls.parts_of(device, "EngineGroups", "engine")
        engines = {self._engine_type(each): each for each in groups}
        engine = engines.get(
            self.calls.zes.ZES_ENGINE_GROUP_ALL,
            engines.get(self.calls.zes.ZES_ENGINE_GROUP_COMPUTE_ALL),
        )
        if engine is None:
            return Lacking("no group of engines tells how busy it is")
        found = self.calls.filled(
            "zesEngineGetActivity", self.calls.zes.zes_engine_stats_t, "", engine
        )
        return per_second(
            self.calls.grown(device, "busy", (found.activeTime, found.timestamp)), 100
        )

    def _engine_type(self, engine: Any) -> Any:  # noqa: ANN401  the binding is not typed
        kind = self.calls.zes.zes_engine_properties_t
        return self.calls.filled("zesEngineGetProperties", kind, "ENGINE_PROPERTIES", engine).type

    def _temperature(self, device: str, sensors: Sequence[str]) -> Reading:
        kinds = [getattr(self.calls.zes, name) for name in sensors]
        for sensor in self.calls.parts_of(device, "TemperatureSensors", "temp"):
            if (
                self.calls.filled(
                    "zesTemperatureGetProperties",
                    self.calls.zes.zes_temp_properties_t,
                    "TEMP_PROPERTIES",
                    sensor,
                ).type
                in kinds
            ):
                degrees: float = self.calls.filled(
                    "zesTemperatureGetState", ctypes.c_double, "", sensor
                ).value
                return round(degrees)
        return Lacking("no such sensor")

    def _energy_uj(self, device: str) -> tuple[int, int] | Lacking:
        domains = self.calls.parts_of(device, "PowerDomains", "pwr")
        if not domains:
            return Lacking("no power domain")
        found = self.calls.filled(
            "zesPowerGetEnergyCounter", self.calls.zes.zes_power_energy_counter_t, "", domains[0]
        )
        return found.energy, found.timestamp

    def _sustained_limit(self, device: str) -> Any:  # noqa: ANN401  the binding is not typed
        """Return the limit that a power cap means."""
        for limit in self._limits(device):
            if limit.level == self.calls.zes.ZES_POWER_LEVEL_SUSTAINED:
                return limit
        raise LevelZeroError("no sustained power limit: zesPowerGetLimitsExt", LASTING_CODES[-1])

    def _limits(self, device: str) -> Any:  # noqa: ANN401
        domains = self.calls.parts_of(device, "PowerDomains", "pwr")
        if not domains:
            raise LevelZeroError("no power domain: zesDeviceEnumPowerDomains", LASTING_CODES[-1])
        return self.calls.listed(
            "zesPowerGetLimitsExt",
            self.calls.zes.zes_power_limit_ext_desc_t,
            domains[0],
            stype="POWER_LIMIT_EXT_DESC",
        )

    def _set_cap(self, device: str, milliwatts: int) -> None:
        domain, limit = (
            self.calls.parts_of(device, "PowerDomains", "pwr")[0],
            self._sustained_limit(device),
        )
        known = self.calls.filled(
            "zesPowerGetProperties",
            self.calls.zes.zes_power_properties_t,
            "POWER_PROPERTIES",
            domain,
        )
        limit.limit = milliwatts or known.defaultLimit
        self.calls.call(
            "zesPowerSetLimitsExt", domain, ctypes.byref(ctypes.c_uint32(1)), ctypes.byref(limit)
        )

    def _power_range(self, device: str) -> tuple[int, int] | Lacking:
        """Return the range of the power limit, if the driver knows both ends: -1 is no limit."""
        domains = self.calls.parts_of(device, "PowerDomains", "pwr")
        if not domains:
            return Lacking("no power domain")
        known = self.calls.filled(
            "zesPowerGetProperties",
            self.calls.zes.zes_power_properties_t,
            "POWER_PROPERTIES",
            domains[0],
        )
        is_known = known.minLimit >= 0 and known.maxLimit > 0
        return (
            (known.minLimit, known.maxLimit)
            if is_known
            else Lacking("the driver does not know its limits")
        )

    def _clock_range(self, device: str) -> tuple[int, int] | Lacking:
        for _, known in self._domains(device, self.calls.zes.ZES_FREQ_DOMAIN_GPU):
            return (round(known.min), round(known.max))
        return Lacking("no such clock")

    def _set_ecc(self, device: str, on: bool | None) -> Done | Lacking:
        """Set ECC. The driver does not report its default, so that cannot be restored."""
        if on is None:
            return Lacking("Intel's driver does not say how ECC is by default")
        zes = self.calls.zes
        wish = zes.zes_device_ecc_desc_t()
        wish.stype = zes.ZES_STRUCTURE_TYPE_DEVICE_ECC_DESC
        wish.state = zes.ZES_DEVICE_ECC_STATE_ENABLED if on else zes.ZES_DEVICE_ECC_STATE_DISABLED
        found = zes.zes_device_ecc_properties_t()
        found.stype = zes.ZES_STRUCTURE_TYPE_DEVICE_ECC_PROPERTIES
        self.calls.call(
            "zesDeviceSetEccState",
            self.calls.handle(device),
            ctypes.byref(wish),
            ctypes.byref(found),
        )
        return Done(
            note="" if found.currentState == found.pendingState else "it counts after a reset"
        )

    def _domains(self, device: str, kind: int) -> Iterator[tuple[Any, Any]]:
        for domain in self.calls.parts_of(device, "FrequencyDomains", "freq"):
            known = self.calls.filled(
                "zesFrequencyGetProperties",
                self.calls.zes.zes_freq_properties_t,
                "FREQ_PROPERTIES",
                domain,
            )
            if known.type == kind:
                yield domain, known

    def _clocks(self, device: str, kind: int) -> Any:  # noqa: ANN401
        for domain, _ in self._domains(device, kind):
            return self.calls.filled(
                "zesFrequencyGetState", self.calls.zes.zes_freq_state_t, "FREQ_STATE", domain
            )
        return Lacking("no such clock")

    def _pcie(self, handle: Any) -> Any:  # noqa: ANN401
        return self.calls.filled("zesDevicePciGetStats", self.calls.zes.zes_pci_stats_t, "", handle)

    def _processes(self, handle: Any) -> tuple[Process, ...]:  # noqa: ANN401
        found = self.calls.listed(
            "zesDeviceProcessesGetState",
            self.calls.zes.zes_process_state_t,
            handle,
            stype="PROCESS_STATE",
        )
        return tuple(Process(each.processId, each.memSize) for each in found)
