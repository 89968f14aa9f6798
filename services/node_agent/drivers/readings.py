"""What is said of a vendor's devices, and what they can be told: the words between the agent and
the children that call the libraries.

What a card or a driver cannot tell is `Lacking` and says why: it is never a zero and never an
error. Times are nanoseconds of the wall clock, counters grow since the driver was loaded unless a
field says otherwise. A device is named by its PCI address ("0000:c1:00.0"), which stays when its id
changes and when another device is lost.
"""

from typing import Final

import msgspec

# Kinds of events. The first three are the agent's own: a call that never came back, a device that
# is gone, one that answers again.
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
    """The card, the driver or the binding does not have it; `denied`: it does, and the agent may
    not.
    """

    why: str
    denied: bool = False


# Of a mode that was set: the driver keeps it until then.
AFTER_RESET: Final = "it counts after a reset"
NOT_READ: Final = Lacking("this vendor's binding does not give it")
Reading = int | Lacking


class Process(msgspec.Struct, frozen=True):
    """One that has something of a device."""

    pid: int
    memory_bytes: Reading


class Link(msgspec.Struct, frozen=True):
    """Direct links to one other end: a device's PCI address, or "switch" for a fabric that joins
    all that are on it.
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
    """What a device is.

    `index` is the vendor's own numbering. A size that is not known is 0; `mig` is whether it is cut
    by MIG now, the partitions are the modes that it is in. `power_mw` and `clocks_mhz` are what its
    power limit and its clocks can be set to. `persistent`: the driver stays loaded while no process
    uses the device. `versions` are those of the vendor's other parts, by name.
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
    """How a device is divided: whether it is in MIG mode, and AMD's partitions.

    None and empty: it is not told.
    """

    mig: bool | None = None
    compute: str = ""
    memory: str = ""


class Sample(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """How a device is.

    ECC errors are those since the driver was loaded; `throttled` names what slows its clocks;
    `recovery_action` is NVML's (`error_catalogue.RECOVERY_ACTIONS`). `fabric` says why the device's
    NVLink fabric is not up; empty: it is, or it has none. `memory_reserved_bytes` is what the
    driver keeps for itself, where `memory_used_bytes` does not contain it. `link_errors` are those
    of all links, `link_counts` those of each where the driver tells them apart. `sram_threshold`: 1
    once the uncorrectable errors of the device's SRAM have passed the driver's own threshold.
    `stale`: the device did not answer this time, and this is its last sample. What is `simulated`
    was measured of the processes that run there, on no device.
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


class Event(msgspec.Struct, frozen=True):
    """Something that a driver said, or that it says nothing any more.

    `pci_bus` is empty when it is about all of a vendor's devices; `number` is the Xid, or what else
    the vendor counts by. `instance`: the number of the MIG instance to which the driver attributes
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
    """0: the card's own default."""

    milliwatts: int


class LockClocks(msgspec.Struct, frozen=True, tag=True):
    """Between these; 0 and 0: not any more."""

    low_mhz: int
    high_mhz: int


class SetPersistence(msgspec.Struct, frozen=True, tag=True):
    on: bool


class SetComputeMode(msgspec.Struct, frozen=True, tag=True):
    """One of `device_controls.COMPUTE_MODES`."""

    mode: str


class SetEcc(msgspec.Struct, frozen=True, tag=True):
    """None: as the card has it by itself."""

    on: bool | None


class SetMigMode(msgspec.Struct, frozen=True, tag=True):
    on: bool


class CreateMigInstance(msgspec.Struct, frozen=True, tag=True):
    """With one compute instance over all of it.

    `start` is the first memory slice. Nothing is left of one that cannot be finished.
    """

    profile: str
    start: int


class DestroyMigInstance(msgspec.Struct, frozen=True, tag=True):
    """With all its compute instances, by its number."""

    number: int


class ListMigInstances(msgspec.Struct, frozen=True, tag=True):
    """All that there are, whoever made them; none of a card whose MIG mode is off."""


class SetPartition(msgspec.Struct, frozen=True, tag=True):
    """AMD: SPX, DPX, TPX, QPX or CPX, and NPS1 to NPS8. Empty: stays."""

    compute: str = ""
    memory: str = ""


class Reset(msgspec.Struct, frozen=True, tag=True):
    """The whole device; nothing may use it."""


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
    """`number` is the driver's, and given again once it is free; `uuid` is what CUDA knows it by,
    empty of one that was never finished.

    It has `size` memory slices of its card from `start` on.
    """

    number: int
    uuid: str
    profile: str
    start: int
    size: int

    @property
    def slices(self) -> int:
        """One bit each."""
        return ((1 << self.size) - 1) << self.start


class Done(msgspec.Struct, frozen=True, tag=True):
    """`note` says what is still to be done (a reset); `instances` are the one that was made, or all
    that were asked for.
    """

    note: str = ""
    instances: tuple[MigInstance, ...] = ()


class Fault(msgspec.Struct, frozen=True, tag=True):
    """Of one device: it is `lost`, or refused what was asked."""

    text: str
    lost: bool = False


class Listed(msgspec.Struct, frozen=True, tag=True):
    """The PCI addresses of a vendor's devices.

    `missing` says why there is none; `answers`: the library was asked, and it knows none.
    """

    devices: tuple[str, ...] = ()
    missing: str = ""
    answers: bool = False


class Happened(msgspec.Struct, frozen=True, tag=True):
    events: tuple[Event, ...] | Lacking = ()


LIST: Final = "list"
DESCRIBE: Final = "describe"
SAMPLE: Final = "sample"
EVENTS: Final = "events"
CONTROL: Final = "control"


class Ask(msgspec.Struct, frozen=True):
    """One line to a child.

    It answers with a line for each device in turn, or one where none is named.
    """

    verb: str
    devices: tuple[str, ...] = ()
    command: Command | None = None


Answer = Listed | Device | Sample | Happened | Done | Lacking | Fault
