"""What a node is built of: its devices and how they hang together.

Nodes of equal build share one `Hardware`, and all that follows of it.

Pure. `pick` chooses devices of a node by its topology: it crosses a level only where no set of
devices would avoid that, and among such sets takes from where the least is free, so that pairs and
halves stay whole. What it finds is kept: a table over (free devices, count). Held against brute
force by tests/property/test_topology.py.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from libs.common.model import Gpu
from services.scheduler.placement.resource_request import INSIDE, ResourceRequest

# A device's group at each level of INSIDE, from the links outward.
Groups = tuple[str, ...]

# Tables are forgotten beyond these: what is needed is found again.
PICKS_MAX: Final = 50_000
NEEDS_MAX: Final = 4_096


class Picked(NamedTuple):
    """Devices as bits, and the levels that they cross, as bits too: the links weigh most, then the
    widest level.
    """

    crossed: int
    mask: int


NONE: Final = Picked(-1, 0)


class Needs(NamedTuple):
    """What each device would have to give a wish, in hundredths, and which ones serve, as bits."""

    parts: tuple[int, ...]
    mask: int


def needs_of(gpus: Sequence[Gpu], request: ResourceRequest) -> Needs:
    parts = tuple([request.need(gpu) for gpu in gpus])
    return Needs(parts, sum([1 << index for index, need in enumerate(parts) if need]))


class Hardware:
    """`models` are the devices of each model, as bits.

    `single`: no two devices go to one job, because the node's fabric is not up.
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
        """Of a wish that names no single devices: nodes of one build differ in their names."""
        found = self._needs.get(request)
        if found is None:
            if len(self._needs) >= NEEDS_MAX:
                del self._needs[next(iter(self._needs))]  # the oldest
            found = self._needs[request] = needs_of(self.gpus, request)
        return found

    def pick(self, free: int, count: int, request: ResourceRequest) -> Picked:
        """`count` of the free devices; NONE when there are not so many, or none that keep together
        as they must.
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
        """`count` devices of a part in which all are alike near: whole small groups of it, the last
        from the smallest that serves.
        """
        groups = self._parts(part, range(len(INSIDE)))
        enough = [group for group in groups if group.bit_count() >= count]
        if enough:
            return _lowest(
                min(enough, key=lambda group: (group.bit_count(), group & -group)), count
            )
        largest = min(groups, key=lambda group: (-group.bit_count(), group & -group))
        return largest | self._within(part & ~largest, count - largest.bit_count())

    def _parts(self, free: int, levels: Sequence[int]) -> list[int]:
        """The free devices, apart wherever their groups differ at one of these levels."""
        parts: dict[Groups, int] = {}
        for index, groups in enumerate(self.groups):
            if free >> index & 1:
                key = tuple(groups[level] for level in levels)
                parts[key] = parts.get(key, 0) | 1 << index
        return list(parts.values())


# The links before the widest level, that before the narrower ones: what it is worse to cross has
# the higher bit.
_BIT: Final = {"interconnect": 8, "socket": 4, "numa": 2, "switch": 1}


def _groups(gpu: Gpu, sockets: tuple[int, ...]) -> Groups:
    """What is not known is a group of the device's own."""
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


def _lowest(mask: int, count: int) -> int:
    taken = 0
    for _ in range(count):
        taken |= mask & -mask & ~taken
        mask &= mask - 1
    return taken


def key_of(
    gpus: Sequence[Gpu], sockets: tuple[int, ...], single: bool = False
) -> tuple[object, ...]:
    """What makes two nodes' builds equal: all but the names of the devices."""
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
