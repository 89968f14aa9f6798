"""The build of a node: its devices and their topology.

Nodes of equal build share one `Hardware` and everything computed from it.

Pure. `pick` chooses devices by topology: it crosses a level only if every set of devices would.
Among the best sets it takes from where least is free, so that pairs and halves stay whole. The
results are cached by (free devices, count). Checked against brute force by
tests/property/test_topology.py.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from libs.common.model import Gpu
from services.scheduler.placement.resource_request import INSIDE, ResourceRequest

# A device's group at each level of INSIDE, from the links outward.
Groups = tuple[str, ...]

# Sizes of the caches; a full cache is cleared.
PICKS_MAX: Final = 50_000
NEEDS_MAX: Final = 4_096


class Picked(NamedTuple):
    """Devices as bits, and the levels that they cross as bits: links weigh most, then the widest
    level.
    """

    crossed: int
    mask: int


NONE: Final = Picked(-1, 0)


class Needs(NamedTuple):
    """The needs of a request on each device, in hundredths; the devices that serve, as bits."""

    parts: tuple[int, ...]
    mask: int


def needs_of(gpus: Sequence[Gpu], request: ResourceRequest) -> Needs:
    parts = tuple([request.need(gpu) for gpu in gpus])
    return Needs(parts, sum([1 << index for index, need in enumerate(parts) if need]))


class Hardware:
    """The devices of a build. `models` are the devices of each model, as bits.

    `single` is true if no two devices may serve one job, because the node's fabric is not up.
    """

    def __init__(self, gpus: Sequence[Gpu], sockets: tuple[int, ...], single: bool = False) -> None:
        self.single: Final = single
        self.gpus: Final = tuple(gpus)
        self.groups: Final = tuple(_groups(gpu, sockets) for gpu in gpus)
        self.models: Final[dict[tuple[str, str], int]] = {}
        for index, gpu in enumerate(gpus):
            self.models[gpu.vendor, gpu.model] = (
                self.models.get((gpu.vendor, gpu.model), 0) | 1 << index
            )
        self.picks: Final[dict[tuple[int, int, tuple[str, ...], tuple[str, ...]], Picked]] = {}
        self._needs: Final[dict[ResourceRequest, Needs]] = {}

    def needs(self, request: ResourceRequest) -> Needs:
        """Return the needs of a request that names no single devices: nodes of one build differ in
        their names.
        """
        found = self._needs.get(request)
        if found is None:
            if len(self._needs) >= NEEDS_MAX:
                del self._needs[next(iter(self._needs))]  # the oldest
            found = self._needs[request] = needs_of(self.gpus, request)
        return found

    def pick(self, free: int, count: int, request: ResourceRequest) -> Picked:
        """Return `count` of the free devices; NONE if there are too few, or none that keep together
        as required.
        """
        key = (free, count, request.required, request.ignored)
        found = self.picks.get(key)
        if found is None:
            if len(self.picks) >= PICKS_MAX:
                del self.picks[next(iter(self.picks))]  # the oldest
            found = self.picks[key] = self._pick(free, count, request)
        return found

    def _pick(self, free: int, count: int, request: ResourceRequest) -> Picked:
        if free.bit_count() < count or (self.single and count > 1):
            return NONE
        must = sum(_BIT[level] for level in request.required if level in _BIT)
        cared = sum(_BIT.values()) - sum(_BIT[level] for level in request.ignored if level in _BIT)
        for crossed in range(1 << len(INSIDE)):
            if crossed & must or crossed & ~cared:
                continue
            together = [
                place for place, level in enumerate(INSIDE) if cared & ~crossed & _BIT[level]
            ]
            parts = [part for part in self._parts(free, together) if part.bit_count() >= count]
            if parts:
                tightest = min(parts, key=lambda part: (part.bit_count(), part & -part))
                return Picked(crossed, self._within(tightest, count))
        return NONE

    def _within(self, part: int, count: int) -> int:
        """Return `count` devices of a part whose devices are equally near: whole small groups, and
        the rest from the smallest group that serves.
        """
        groups = self._parts(part, range(len(INSIDE)))
        enough = [group for group in groups if group.bit_count() >= count]
        if enough:
            return _lowest_bits(
                min(enough, key=lambda group: (group.bit_count(), group & -group)), count
            )
        largest = min(groups, key=lambda group: (-group.bit_count(), group & -group))
        return largest | self._within(part & ~largest, count - largest.bit_count())

    def _parts(self, free: int, levels: Sequence[int]) -> list[int]:
        """Split the free devices wherever their groups differ at one of these levels."""
        parts: dict[Groups, int] = {}
        for index, groups in enumerate(self.groups):
            if free >> index & 1:
                key = tuple(groups[level] for level in levels)
                parts[key] = parts.get(key, 0) | 1 << index
        return list(parts.values())


# The links have the highest bit, then the widest level: the worse it is to cross, the higher the
# bit.
_BIT: Final = {"interconnect": 8, "socket": 4, "numa": 2, "switch": 1}


def _groups(gpu: Gpu, sockets: tuple[int, ...]) -> Groups:
    """Return the device's group at each level; an unknown level is a group of its own."""
    alone = f"?{gpu.index}"
    numa = str(gpu.numa) if gpu.numa >= 0 else alone
    socket = str(sockets[gpu.numa]) if 0 <= gpu.numa < len(sockets) else numa
    found = {
        "interconnect": gpu.links or alone,
        "switch": gpu.switch or alone,
        "numa": numa,
        "socket": socket,
    }
    return tuple(found[level] for level in INSIDE)


def _lowest_bits(mask: int, count: int) -> int:
    taken = 0
    for _ in range(count):
        taken |= mask & -mask & ~taken
        mask &= mask - 1
    return taken


def key_of(
    gpus: Sequence[Gpu], sockets: tuple[int, ...], single: bool = False
) -> tuple[object, ...]:
    """Return the key by which two builds are equal: everything but the names of the devices."""
    return (
        sockets,
        single,
        *(
            (
                g.index,
                g.vendor,
                g.model,
                g.memory_bytes,
                g.compute_capability,
                g.numa,
                g.switch,
                g.links,
                g.mig_profiles,
                g.mig,
            )
            for g in gpus
        ),
    )
