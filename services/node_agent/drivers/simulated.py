"""Devices in name only, so that a laptop has a cluster whose jobs are real processes.

It says so: vendor "simulated".

A node of them is built as real ones are: pairs behind a PCIe switch, half of them at each of two
sockets, direct links among all where the model has them. Its CPUs and its memory are in name only
too. How busy a device is, its jobs' processes decide: by what they say, as a program says it to a
real device by what it submits, else by how busy they keep this machine's processors. Its memory is
theirs. It takes what a card of its model takes (power limit, clocks, modes), shows it in its
samples, and loses it with a reset and with its agent.
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
# What a node has of the host for each device, and when it has none.
CPUS_MILLI: Final = 14_000
HOST_BYTES: Final = 256 * GIB
SWITCH_GPUS: Final = 2
SOCKETS: Final = (0, 1)
# Of a played event at least so many words.
EVENT_WORDS: Final = 4
READING: Final = "reading"
MENDED: Final = ("remap_pending", "recovery_action")
# What a device in name only has not of itself, and may be said of it.
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
    """What a model is known for, as its maker says.

    `links`: whether its devices are linked with each other; its power limit and its clocks are what
    they can be set to, and the most is what it has by itself.
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
# What a device draws that does nothing, of the most that it may.
IDLE_PERCENT: Final = 10


class Told(msgspec.Struct):
    """What a device was told to be; 0: what it is by itself."""

    cap_mw: int = 0
    high_mhz: int = 0


class Work(NamedTuple):
    """A job on a device: its first process, and the seconds for which it says that it has kept its
    devices busy; None: it says nothing.
    """

    pid: int
    device_s: float | None = None


class SimulatedDriver:
    """See `drivers.Driver`.

    `held` may be filled by whoever plays a fault: a device, and what holds it; `nodes` by who has
    devices to play with. `running` says what works on each device, `played` what it tells of
    itself, by its address.
    """

    simulated = True

    def __init__(
        self, node_id: str, count: int, model: str = "Simulated H100", memory_gib: int = 80
    ) -> None:
        self.gpus = [_device(node_id, index, count, model, memory_gib) for index in range(count)]
        self.profiles = {gpu.uuid: gpu.mig_profiles for gpu in self.gpus if gpu.mig_profiles}
        self.held: dict[GpuId, str] = {}
        self.said: list[Event] = []
        self.played: dict[str, dict[str, int]] = {}
        self.nodes: DeviceNodes = {}
        self.capabilities: Capabilities = {}
        self.instances: dict[GpuId, simulated_mig.Instances] = {}
        self.baseline: dict[str, int] = {}
        self.hurry = False
        self.known: Sequence[Device] = ()
        self.absent: Mapping[GpuId, Absent] = {}
        self.running: Callable[[], Mapping[GpuId, Sequence[Work]]] = dict
        self.told: dict[GpuId, Told] = {}
        self.seen_ns = 0
        self.seen: dict[GpuId, dict[int, float]] = {}

    @property
    def cpus_milli(self) -> int:
        return CPUS_MILLI * max(1, len(self.gpus))

    @property
    def memory_bytes(self) -> int:
        return HOST_BYTES * max(1, len(self.gpus))

    async def inventory(self) -> Sequence[Gpu]:
        return self.gpus

    async def unclean(self, uuids: Sequence[GpuId]) -> dict[GpuId, str]:
        return {uuid: self.held[uuid] for uuid in uuids if uuid in self.held}

    async def sample(self) -> Mapping[GpuId, Sample]:
        """Busy since the last samples; not at all in the first."""
        running, now_ns = self.running(), time.monotonic_ns()
        since_s = (now_ns - self.seen_ns) / 1e9 if self.seen_ns else math.inf
        self.seen_ns = now_ns
        return {
            gpu.uuid: self._sample(gpu, running.get(gpu.uuid, ()), since_s) for gpu in self.gpus
        }

    @property
    def versions(self) -> Mapping[str, str]:
        return {}

    def version_of(self, uuid: GpuId) -> str:
        return ""

    def modes(self, uuid: GpuId) -> Modes:
        """A card in name only can be cut while it is used whole: it is in MIG mode unless it was
        told not to be.
        """
        gpu = next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
        return Modes(None if gpu is None or uuid not in self.profiles else bool(gpu.mig_profiles))

    async def events(self) -> Sequence[Event]:
        said, self.said = self.said, []
        return said

    def hears(self, line: str) -> bool:
        """What is played as an event of its driver: "VENDOR ADDRESS KIND NUMBER TEXT", or as a
        "reading" of which TEXT is the name.

        Whether it could be understood.
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
        self.said.append(
            Event(time.time_ns(), vendor, address, kind, int(number), " ".join(words[4:]))
        )
        return True

    async def control(self, uuid: GpuId, command: Command) -> Done | Lacking:
        """There is nothing to reset but what it was told, and it says so; what a reset mends is
        played no more.

        Raises Refused for what a card of its model does not take.
        """
        gpu = next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)
        if gpu is None:
            raise Refused(f"this node has no GPU {uuid}: muster gpus lists them")
        told = self.told.setdefault(uuid, Told())
        match command:
            case r.SetPowerCap(milliwatts) if any(gpu.power_mw):
                told.cap_mw = _within(milliwatts, gpu.power_mw, "mW")
            case r.LockClocks(low_mhz, high_mhz) if any(gpu.clocks_mhz):
                _within(low_mhz, gpu.clocks_mhz, "MHz")
                told.high_mhz = _within(high_mhz, gpu.clocks_mhz, "MHz")
            case r.SetPersistence() | r.SetComputeMode():
                return Done(note="simulated: nothing comes of it")
            case r.Reset():
                del self.told[uuid]
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
                return simulated_mig.told(
                    self.instances.setdefault(uuid, {}),
                    mig.card_of(gpu.mig_profiles),
                    uuid,
                    command,
                )
            case _:
                return NOT_HERE
        return Done()

    async def topology(self) -> Topology:
        """As it was made up: each pair on its own switch, each socket's switches on a root complex
        each.
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
                Part(f"GPU{gpu.index}", "gpu", gpu.uuid, gpu.pci_bus, Seat(route, gpu.numa), links)
            )
        return topology(parts, simulated=True)

    async def close(self) -> None:
        """Nothing is open."""

    def _sample(self, gpu: Gpu, working: Sequence[Work], since_s: float) -> Sample:
        """Works on one device take turns: their times add up."""
        used = [(work, _uses(work.pid)) for work in working]
        before = self.seen.get(gpu.uuid, {})
        now = self.seen[gpu.uuid] = {work.pid: _busy_s(work, uses) for work, uses in used}
        busy_s = sum(max(0.0, seconds - before.get(pid, 0.0)) for pid, seconds in now.items())
        all_used = [use for _, uses in used for use in uses]
        busy, told = min(1.0, busy_s / since_s), self.told.get(gpu.uuid, Told())
        cap_mw, clock_mhz = told.cap_mw or gpu.power_mw[1], told.high_mhz or gpu.clocks_mhz[1]
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
        return _with(sample, played) if played else sample


def _with(sample: Sample, played: Mapping[str, int]) -> Sample:
    """The sample with what was played. Errors of single links are counted among those of all."""
    found = [(LINK.fullmatch(name), count) for name, count in played.items()]
    links = tuple(
        LinkErrors(int(link[1]), link[2], count) for link, count in found if link is not None
    )
    told: dict[str, Any] = {
        name: count for name, count in played.items() if LINK.fullmatch(name) is None
    }
    if links:
        all_links = sum(each.count for each in links if each.kind != "recovery_failed")
        told = {"link_counts": links, "link_errors": all_links, **told}
    return replace(sample, **told)


def _within(value: int, bounds: tuple[int, int], unit: str) -> int:
    if value and not bounds[0] <= value <= bounds[1]:
        raise Refused(f"{value} {unit} is out of bounds: {bounds[0]} to {bounds[1]}")
    return value


def _power_mw(most_mw: int, cap_mw: int, busy: float) -> int:
    """Made up: a part of the most when it is idle, up to the limit when it is busy."""
    idle_mw = most_mw * IDLE_PERCENT // 100
    return idle_mw + round(max(0, cap_mw - idle_mw) * busy)


def _uses(pid: int) -> list[processes.Use]:
    return [
        use
        for each in (pid, *processes.descendants(pid))
        if (use := processes.use(each)) is not None
    ]


def _busy_s(work: Work, uses: Sequence[processes.Use]) -> float:
    """What is said counts while the process that said it is there."""
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
