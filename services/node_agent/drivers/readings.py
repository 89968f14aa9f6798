"""The messages between the agent and the child processes that call the vendors' libraries.

A value that a card or a driver cannot report is `Lacking` with a reason. It is never a zero and
never an error. Times are nanoseconds of the wall clock. Counters start when the driver is loaded,
unless a field says otherwise. A device is named by its PCI address ("0000:c1:00.0"), which does not
change when its id changes or another device is lost.
"""

from typing import Final

import msgspec

# Kinds of events. The agent itself reports the first three: a call that never returned, a lost
# device, and a device that answers again.
WEDGED: Final = "driver_wedged"
LOST: Final = "lost"
ANSWERS: Final = "answers_again"
XID: Final = "xid"
ECC: Final = "ecc"
RESET_BEGAN: Final = "reset_began"
RESET_ENDED: Final = "reset_ended"
THERMAL: Final = "thermal"
PAGE_FAULT: Final = "page_fault"
OTHER: Final = "other"


class Lacking(msgspec.Struct, frozen=True, tag=True):
    """A value or a command that the card, the driver or the binding does not have.

    `denied`: they have it, but the agent lacks the permission.
    """

    why: str
    denied: bool = False


# The note of a mode that becomes active only after a reset.
AFTER_RESET: Final = "it counts after a reset"
NOT_READ: Final = Lacking("this vendor's binding does not give it")
Reading = int | Lacking


class Process(msgspec.Struct, frozen=True):
    """A process that uses a device."""

    pid: int
    memory_bytes: Reading


class Link(msgspec.Struct, frozen=True):
    """Direct links of a device to one peer.

    `peer` is a device's PCI address, or "switch" for a fabric that joins all devices on it.
    """

    kind: str
    peer: str
    count: int


class LinkErrors(msgspec.Struct, frozen=True):
    """Errors of one direct link, by its number.

    `kind`: replay, recovery, crc or recovery_failed.
    """

    link: int
    kind: str
    count: int


class Device(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The description of a device.

    `index` is the vendor's own numbering. A size that is not known is 0. `mig`: MIG mode is on. The
    partitions are the modes that the device is in. `power_mw` and `clocks_mhz` are the ranges of
    its power limit and its clocks. `persistent`: the driver stays loaded while no process uses the
    device. `versions` are those of the vendor's other parts, by name.
    """

    pci_bus: str
    uuid: str
    index: int
    vendor: str
    model: str
    driver_version: str
    memory_bytes: int = 0
    compute_capability: tuple[int, int] = (0, 0)
    mig: bool | Lacking = NOT_READ
    mig_profiles: tuple[str, ...] = ()
    compute_partition: str | Lacking = NOT_READ
    memory_partition: str | Lacking = NOT_READ
    links: tuple[Link, ...] | Lacking = NOT_READ
    power_mw: tuple[int, int] | Lacking = NOT_READ
    clocks_mhz: tuple[int, int] | Lacking = NOT_READ
    persistent: bool | Lacking = NOT_READ
    versions: dict[str, str] = {}


class Modes(msgspec.Struct, frozen=True):
    """The division of a device: its MIG mode, and AMD's partitions.

    None and empty mean that it is not known.
    """

    mig: bool | None = None
    compute: str = ""
    memory: str = ""


class Sample(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The state of a device at one time.

    `throttled` names the reasons for slowed clocks. `recovery_action` is NVML's
    (`error_catalogue.RECOVERY_ACTIONS`). `fabric` says why the device's NVLink fabric is not up;
    it is empty if the fabric is up or the device has none. `memory_reserved_bytes` is the driver's
    own memory, where `memory_used_bytes` does not contain it. `link_errors` sums the errors of all
    links; `link_counts` has those of each link, where the driver reports them. `sram_threshold`
    is 1 once the uncorrectable errors of the device's SRAM have passed the driver's own threshold.
    The fields `..._permille` and `..._per_s` are profiling counters: means over about a second.
    `stale`: the device did not answer, and this is its last sample. `simulated`: the values are
    those of the processes that run there, because there is no device.
    """

    pci_bus: str
    at_ns: int
    simulated: bool = False
    stale: bool = False
    busy_percent: Reading = NOT_READ
    memory_busy_percent: Reading = NOT_READ
    encoder_percent: Reading = NOT_READ
    decoder_percent: Reading = NOT_READ
    memory_total_bytes: Reading = NOT_READ
    memory_used_bytes: Reading = NOT_READ
    memory_reserved_bytes: Reading = NOT_READ
    temperature_c: Reading = NOT_READ
    memory_temperature_c: Reading = NOT_READ
    power_mw: Reading = NOT_READ
    power_cap_mw: Reading = NOT_READ
    energy_mj: Reading = NOT_READ
    clock_mhz: Reading = NOT_READ
    memory_clock_mhz: Reading = NOT_READ
    ecc_corrected: Reading = NOT_READ
    ecc_uncorrected: Reading = NOT_READ
    sram_uncorrected: Reading = NOT_READ
    sram_threshold: Reading = NOT_READ
    remapped_corrected: Reading = NOT_READ
    remapped_uncorrected: Reading = NOT_READ
    remap_pending: Reading = NOT_READ
    remap_failed: Reading = NOT_READ
    recovery_action: Reading = NOT_READ
    link_errors: Reading = NOT_READ
    link_counts: tuple[LinkErrors, ...] | Lacking = NOT_READ
    link_sent_bytes: Reading = NOT_READ
    link_received_bytes: Reading = NOT_READ
    pcie_sent_bytes: Reading = NOT_READ
    pcie_received_bytes: Reading = NOT_READ
    pcie_replays: Reading = NOT_READ
    fan_percent: Reading = NOT_READ
    throttled: tuple[str, ...] | Lacking = NOT_READ
    processes: tuple[Process, ...] | Lacking = NOT_READ
    fabric: str | Lacking = NOT_READ
    sm_active_permille: Reading = NOT_READ
    sm_occupancy_permille: Reading = NOT_READ
    tensor_active_permille: Reading = NOT_READ
    memory_bandwidth_permille: Reading = NOT_READ
    pcie_sent_bytes_per_s: Reading = NOT_READ
    pcie_received_bytes_per_s: Reading = NOT_READ
    link_sent_bytes_per_s: Reading = NOT_READ
    link_received_bytes_per_s: Reading = NOT_READ


class Event(msgspec.Struct, frozen=True):
    """An event that a driver reported, or the end of its answers.

    `pci_bus` is empty if the event concerns all devices of the vendor. `number` is the Xid, or the
    vendor's own number. `instance` is the number of the MIG instance to which the driver attributes
    it.
    """

    at_ns: int
    vendor: str
    pci_bus: str
    kind: str
    number: int = 0
    text: str = ""
    instance: int | None = None


class SetPowerCap(msgspec.Struct, frozen=True, tag=True):
    """Set the power limit; 0 restores the card's default."""

    milliwatts: int


class LockClocks(msgspec.Struct, frozen=True, tag=True):
    """Lock the clocks to a range; 0 and 0 unlock them."""

    low_mhz: int
    high_mhz: int


class SetPersistence(msgspec.Struct, frozen=True, tag=True):
    """Set persistence mode."""

    on: bool


class SetComputeMode(msgspec.Struct, frozen=True, tag=True):
    """Set the compute mode, one of `device_controls.COMPUTE_MODES`."""

    mode: str


class SetEcc(msgspec.Struct, frozen=True, tag=True):
    """Set ECC; None restores the card's default."""

    on: bool | None


class SetMigMode(msgspec.Struct, frozen=True, tag=True):
    """Set MIG mode."""

    on: bool


class CreateMigInstance(msgspec.Struct, frozen=True, tag=True):
    """Create a MIG instance with one compute instance over all of it.

    `start` is the first memory slice. If the creation fails, nothing of the instance is left.
    """

    profile: str
    start: int


class DestroyMigInstance(msgspec.Struct, frozen=True, tag=True):
    """Remove the MIG instance of this number, with all its compute instances."""

    number: int


class ListMigInstances(msgspec.Struct, frozen=True, tag=True):
    """List all MIG instances of the card; none if its MIG mode is off."""


class SetPartition(msgspec.Struct, frozen=True, tag=True):
    """Partition an AMD card: SPX, DPX, TPX, QPX or CPX, and NPS1 to NPS8. Empty: no change."""

    compute: str = ""
    memory: str = ""


class Reset(msgspec.Struct, frozen=True, tag=True):
    """Reset the whole device. No process may use it."""


MigCommand = SetMigMode | CreateMigInstance | DestroyMigInstance | ListMigInstances
Command = (
    SetPowerCap
    | LockClocks
    | SetPersistence
    | SetComputeMode
    | SetEcc
    | MigCommand
    | SetPartition
    | Reset
)


class MigInstance(msgspec.Struct, frozen=True):
    """One MIG instance: `size` memory slices of its card from `start` on.

    `number` is the driver's, which reuses free numbers. `uuid` is its name in CUDA; it is empty if
    the instance was not created completely.
    """

    number: int
    uuid: str
    profile: str
    start: int
    size: int

    @property
    def slices(self) -> int:
        """The memory slices as a set, one bit each."""
        return ((1 << self.size) - 1) << self.start


class Done(msgspec.Struct, frozen=True, tag=True):
    """The command was carried out.

    `note` says what remains to be done (a reset). `instances` are the instance that was created, or
    those that were listed.
    """

    note: str = ""
    instances: tuple[MigInstance, ...] = ()


class Fault(msgspec.Struct, frozen=True, tag=True):
    """One device failed: it is `lost`, or refused the request."""

    text: str
    lost: bool = False


class Listed(msgspec.Struct, frozen=True, tag=True):
    """The PCI addresses of a vendor's devices.

    `missing` says why there is none. `answers`: the library answered, perhaps with no device.
    """

    devices: tuple[str, ...] = ()
    missing: str = ""
    answers: bool = False


class Happened(msgspec.Struct, frozen=True, tag=True):
    """The events since the last call."""

    events: tuple[Event, ...] | Lacking = ()


LIST: Final = "list"
DESCRIBE: Final = "describe"
SAMPLE: Final = "sample"
EVENTS: Final = "events"
CONTROL: Final = "control"


class Ask(msgspec.Struct, frozen=True):
    """One line to a child process.

    The child answers with one line per device in turn, or with one line if no device is named. A
    command is carried out only if the device has this `uuid`. An empty `uuid` accepts any device.
    """

    verb: str
    devices: tuple[str, ...] = ()
    command: Command | None = None
    uuid: str = ""


Answer = Listed | Device | Sample | Happened | Done | Lacking | Fault
