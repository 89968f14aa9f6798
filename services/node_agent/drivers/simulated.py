"""Simulated devices, so that a laptop has a cluster whose jobs are real processes.

Their vendor is "simulated". A node has the topology of a real one: pairs of devices behind a PCIe
switch, half of the pairs at each of two sockets, and direct links among all where the model has
them. The node's CPUs and memory are simulated too. A device is as busy as its jobs report, else as
busy as their processes keep this machine's processors. Its memory use is that of the processes. A
device accepts the controls of its model (power limit, clocks, modes), shows them in its samples,
and loses them with a reset or when its agent ends.
"""

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from libs.common.devices import mig
from libs.common.devices.topology import Topology
from libs.common.errors import Refused
from libs.common.model import Gpu, GpuId
from services.node_agent.drivers import Capabilities, DeviceNodes, simulated_mig
from services.node_agent.drivers import readings as r
from services.node_agent.drivers.absent import Absent
from services.node_agent.drivers.readings import (
    Command,
    Device,
    Done,
    Event,
    Lacking,
    Link,
    LinkErrors,
    Modes,
    Process,
    Sample,
)
from services.node_agent.drivers.sysfs import Seat
from services.node_agent.drivers.topology import FABRIC, NVLINK, Part, topology
from services.node_agent.machine import processes

VENDOR: Final = "simulated"
GIB: Final = 1 << 30
# The node's host resources for each device; a node without devices has those for one.
CPUS_MILLI: Final = 14_000
HOST_BYTES: Final = 256 * GIB
SWITCH_GPUS: Final = 2
SOCKETS: Final = (0, 1)
# The fewest words of a played event.
EVENT_WORDS: Final = 4
READING: Final = "reading"
MENDED: Final = ("remap_pending", "recovery_action")
# Readings that a simulated device does not have by itself and that can be played.
PLAYABLE: Final = (
    *(
        "temperature_c",
        "memory_temperature_c",
        "power_mw",
        "ecc_corrected",
        "ecc_uncorrected",
        "remap_pending",
        "remap_failed",
    ),
    *("sram_uncorrected", "sram_threshold"),
    *("recovery_action", "link_errors", "pcie_replays"),
)
# A reading of one link ("link 3 replay").
LINK: Final = re.compile(r"link (\d+) (replay|recovery|crc|recovery_failed)")
NOT_HERE: Final = Lacking("a simulated device has none")


class Card(NamedTuple):
    """The properties of a model, from its data sheet.

    `links`: its devices have direct links with each other. `power_w` and `clocks_mhz` are the
    ranges of its power limit and clocks; the maximum is the default.
    """

    compute_capability: tuple[int, int] = (0, 0)
    links: bool = False
    power_w: tuple[int, int] = (0, 0)
    clocks_mhz: tuple[int, int] = (0, 0)


# By a word of the model's name.
CARDS: Final = {
    "H100": Card((9, 0), True, (200, 700), (210, 1980)),
    "H200": Card((9, 0), True, (200, 700), (210, 1980)),
    "A100": Card((8, 0), True, (100, 400), (210, 1410)),
    "V100": Card((7, 0), True, (150, 300), (135, 1530)),
    "A10": Card((8, 6), False, (60, 150), (210, 1695)),
    "L4": Card((8, 9), False, (40, 72), (210, 2040)),
    "T4": Card((7, 5), False, (60, 70), (300, 1590)),
    "MI300X": Card(links=True, power_w=(150, 750), clocks_mhz=(132, 2100)),
}
# Samples that are closer together have the busy time of the earlier one.
SPAN_MIN_S: Final = 0.04
# The power of an idle device in percent of its maximum.
IDLE_PERCENT: Final = 10


class Settings(msgspec.Struct):
    """The settings of a device; 0 means the default."""

    cap_mw: int = 0
    high_mhz: int = 0


class Work(NamedTuple):
    """A job on a device: its first process, and the device seconds that it reports.

    `device_s` is None if the job reports nothing.
    """

    pid: int
    device_s: float | None = None


class SimulatedDriver:
    """The driver of simulated devices; see `drivers.Driver`.

    Tests fill `held` (why a device is not clean) and `nodes`. `running` returns the work on each
    device. `played` has the readings that were played, by the device's address.
    """

    simulated = True

    def __init__(
        self, node_id: str, count: int, model: str = "Simulated H100", memory_gib: int = 80
    ) -> None:
        self.gpus = [
            _device(node_id, index, count=count, model=model, memory_gib=memory_gib)
            for index in range(count)
        ]
        self.profiles = {gpu.uuid: gpu.mig_profiles for gpu in self.gpus if gpu.mig_profiles}
        self.held: dict[GpuId, str] = {}
        self.unreported: list[Event] = []
        self.played: dict[str, dict[str, int]] = {}
        self.nodes: DeviceNodes = {}
        self.capabilities: Capabilities = {}
        self.instances: dict[GpuId, simulated_mig.Instances] = {}
        self.baseline: dict[str, int] = {}
        self.hurry = False
        self.known: Sequence[Device] = ()
        self.absent: Mapping[GpuId, Absent] = {}
        self.running: Callable[[], Mapping[GpuId, Sequence[Work]]] = dict
        self.settings: dict[GpuId, Settings] = {}
        self.seen_ns = 0
        self.seen: dict[GpuId, dict[int, float]] = {}
        self.busy: dict[GpuId, float] = {}

    @property
    def cpus_milli(self) -> int:
        return CPUS_MILLI * max(1, len(self.gpus))

    @property
    def memory_bytes(self) -> int:
        return HOST_BYTES * max(1, len(self.gpus))

    async def inventory(self) -> Sequence[Gpu]:
        return self.gpus

    async def read_nodes(self) -> None:
        """Simulated devices have no nodes, except those that tests fill in."""

    async def renumbered(self, vendor: str, wait_s: float = 0.0) -> str:
        return ""

    async def unclean(self, uuids: Sequence[GpuId]) -> dict[GpuId, str]:
        return {uuid: self.held[uuid] for uuid in uuids if uuid in self.held}

    async def sample(self) -> Mapping[GpuId, Sample]:
        """Return samples; a device's busy time is that since the last samples, 0 in the first.

        Samples that come right after others have the same busy time, because the kernel counts CPU
        time in steps of 10 ms.
        """
        running, now_ns = self.running(), time.monotonic_ns()
        since_s = (now_ns - self.seen_ns) / 1e9 if self.seen_ns else math.inf
        since_s = 0.0 if since_s < SPAN_MIN_S else since_s
        self.seen_ns = now_ns if since_s else self.seen_ns
        return {
            gpu.uuid: self._sample(gpu, running.get(gpu.uuid, ()), since_s) for gpu in self.gpus
        }

    @property
    def versions(self) -> Mapping[str, str]:
        return {}

    def version_of(self, uuid: GpuId) -> str:
        return ""

    def modes(self, uuid: GpuId) -> Modes:
        """Return how the device is divided.

        A simulated card in MIG mode can also run jobs as a whole, so MIG mode is on unless it was
        set off.
        """
        gpu = next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
        return Modes(None if gpu is None or uuid not in self.profiles else bool(gpu.mig_profiles))

    async def events(self) -> Sequence[Event]:
        events, self.unreported = self.unreported, []
        return events

    def hears(self, line: str) -> bool:
        """Play one line as an event of the driver; return whether the line is valid.

        The form is "VENDOR ADDRESS KIND NUMBER TEXT". The kind "reading" sets the reading TEXT.
        """
        words = line.split(maxsplit=4)
        if len(words) < EVENT_WORDS or not words[3].isdecimal():
            return False
        vendor, address, kind, number = words[:4]
        if kind == READING:
            known = words[-1] in PLAYABLE or LINK.fullmatch(words[-1]) is not None
            if known:
                self.played.setdefault(address, {})[words[-1]] = int(number)
            return known
        self.unreported.append(
            Event(
                at_ns=time.time_ns(),
                vendor=vendor,
                pci_bus=address,
                kind=kind,
                number=int(number),
                text=" ".join(words[4:]),
            )
        )
        return True

    async def control(self, uuid: GpuId, command: Command) -> Done | Lacking:
        """Carry out a command.

        A reset restores the default settings and ends the played readings that a real reset would
        mend; its note says that it is simulated. Raises Refused for a value that the model does not
        accept.
        """
        gpu = next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
        if gpu is None:
            raise Refused(f"this node has no GPU {uuid}: muster gpus lists them")
        settings = self.settings.setdefault(uuid, Settings())
        match command:
            case r.SetPowerCap(milliwatts) if any(gpu.power_mw):
                settings.cap_mw = _within(milliwatts, gpu.power_mw, "mW")
            case r.LockClocks(low_mhz, high_mhz) if any(gpu.clocks_mhz):
                _within(low_mhz, gpu.clocks_mhz, "MHz")
                settings.high_mhz = _within(high_mhz, gpu.clocks_mhz, "MHz")
            case r.SetPersistence() | r.SetComputeMode():
                return Done(note="simulated: it has no effect")
            case r.Reset():
                del self.settings[uuid]
                played = self.played.get(gpu.pci_bus, {})
                self.played[gpu.pci_bus] = {
                    name: value for name, value in played.items() if name not in MENDED
                }
                return Done(note="simulated: nothing was reset")
            case r.SetMigMode(on) if uuid in self.profiles:
                cuts = self.profiles[uuid] if on else ()
                self.gpus = [
                    msgspec.structs.replace(gpu, mig_profiles=cuts) if gpu.uuid == uuid else gpu
                    for gpu in self.gpus
                ]
            case r.CreateMigInstance() | r.DestroyMigInstance() | r.ListMigInstances():
                return simulated_mig.carry_out(
                    self.instances.setdefault(uuid, {}),
                    mig.card_of(gpu.mig_profiles),
                    uuid,
                    command,
                )
            case _:
                return NOT_HERE
        return Done()

    async def topology(self) -> Topology:
        """Return the simulated topology: each pair of devices on a switch, each switch on its own
        root complex.
        """
        parts = []
        for gpu in self.gpus:
            route = (
                f"pci-{gpu.switch}",
                f"port-{gpu.switch}",
                gpu.switch,
                f"port-{gpu.index}",
                gpu.pci_bus,
            )
            links = [Link("xgmi" if "MI" in gpu.model else NVLINK, FABRIC, 0)] if gpu.links else []
            parts.append(
                Part(
                    name=f"GPU{gpu.index}",
                    kind="gpu",
                    device=gpu.uuid,
                    pci_bus=gpu.pci_bus,
                    seat=Seat(route, gpu.numa),
                    links=links,
                )
            )
        return topology(parts, simulated=True)

    async def close(self) -> None:
        """Do nothing: nothing is open."""

    def _sample(self, gpu: Gpu, working: Sequence[Work], since_s: float) -> Sample:
        """Return a sample of one device. Jobs on it take turns, so their times add up."""
        used = [(work, _uses(work.pid)) for work in working]
        if since_s:
            self.busy[gpu.uuid] = self._busy(gpu, used, since_s)
        busy = self.busy.get(gpu.uuid, 0.0)
        all_used = [use for _, uses in used for use in uses]
        settings = self.settings.get(gpu.uuid, Settings())
        cap_mw = settings.cap_mw or gpu.power_mw[1]
        clock_mhz = settings.high_mhz or gpu.clocks_mhz[1]
        sample = Sample(
            pci_bus=gpu.pci_bus,
            at_ns=time.time_ns(),
            simulated=True,
            busy_percent=round(100 * busy),
            memory_total_bytes=gpu.memory_bytes,
            memory_used_bytes=sum(use.memory_bytes for use in all_used),
            power_mw=_power_mw(gpu.power_mw[1], cap_mw, busy) if cap_mw else NOT_HERE,
            power_cap_mw=cap_mw or NOT_HERE,
            clock_mhz=clock_mhz or NOT_HERE,
            processes=tuple(Process(use.pid, use.memory_bytes) for use in all_used),
        )
        played = self.played.get(gpu.pci_bus, {})
        return _with_played(sample, played) if played else sample

    def _busy(
        self, gpu: Gpu, used: Sequence[tuple[Work, Sequence[processes.Use]]], since_s: float
    ) -> float:
        """Return the busy part of the time since the last samples, and begin the next time."""
        before = self.seen.get(gpu.uuid, {})
        now = self.seen[gpu.uuid] = {work.pid: _busy_s(work, uses) for work, uses in used}
        busy_s = sum(max(0.0, seconds - before.get(pid, 0.0)) for pid, seconds in now.items())
        return min(1.0, busy_s / since_s)


def _with_played(sample: Sample, played: Mapping[str, int]) -> Sample:
    """Return the sample with the played readings. The errors of single links are also summed up."""
    found = [(LINK.fullmatch(name), count) for name, count in played.items()]
    links = tuple(
        LinkErrors(int(link[1]), link[2], count) for link, count in found if link is not None
    )
    readings: dict[str, Any] = {
        name: count for name, count in played.items() if LINK.fullmatch(name) is None
    }
    if links:
        all_links = sum(each.count for each in links if each.kind != "recovery_failed")
        readings = {"link_counts": links, "link_errors": all_links, **readings}
    return replace(sample, **readings)


def _within(value: int, bounds: tuple[int, int], unit: str) -> int:
    if value and not bounds[0] <= value <= bounds[1]:
        raise Refused(f"{value} {unit} is out of range: give {bounds[0]} to {bounds[1]} {unit}")
    return value


def _power_mw(most_mw: int, cap_mw: int, busy: float) -> int:
    """Return a simulated power: a part of the maximum when idle, up to the limit when busy."""
    idle_mw = most_mw * IDLE_PERCENT // 100
    return idle_mw + round(max(0, cap_mw - idle_mw) * busy)


def _uses(pid: int) -> list[processes.Use]:
    return [
        use
        for each in (pid, *processes.descendants(pid))
        if (use := processes.use(each)) is not None
    ]


def _busy_s(work: Work, uses: Sequence[processes.Use]) -> float:
    """Return the busy seconds of a job: those that it reports while it runs, else its CPU time."""
    if not uses or work.device_s is None:
        return sum(use.cpu_s for use in uses)
    return work.device_s


def _device(node_id: str, index: int, count: int, model: str, memory_gib: int) -> Gpu:
    words = model.upper().split()
    word = next((word for word in CARDS if word in words), "")
    card = CARDS.get(word, Card())
    return Gpu(
        uuid=GpuId(f"GPU-{node_id}-{index}"),
        index=index,
        vendor=VENDOR,
        model=model,
        memory_bytes=memory_gib * GIB,
        compute_capability=card.compute_capability,
        pci_bus=f"0000:{index + 1:02x}:00.0",
        numa=index * len(SOCKETS) // count,
        switch=f"switch-{index // SWITCH_GPUS}",
        links="all" if card.links else "",
        mig_profiles=tuple(mig.CARDS.get(f"{word} {memory_gib}GB", ())),
        power_mw=(card.power_w[0] * 1_000, card.power_w[1] * 1_000),
        clocks_mhz=card.clocks_mhz,
    )
