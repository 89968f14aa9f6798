"""The node state: what is free of one node's devices and host, as placement sees it.

A mirror of the ledger, which only `capacity.py` updates. Pure. `fits` yields the ways in which a
node could serve one member of a job; a strategy decides which node and way is best.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from libs.common.devices import mig
from libs.common.devices.means import lacking
from libs.common.model import GPUS_PER_NODE_MAX, MIG, WHOLE_GPU, GpuHold, JobId, NodeId
from libs.common.state.cluster import GpuView, Job, Node
from libs.common.state.ledger import uuid_of
from services.scheduler.placement.hardware import NONE, Hardware, Needs, needs_of
from services.scheduler.placement.resource_request import ResourceRequest

# The host's size is unknown: a job that asks for CPUs or memory is not served.
UNKNOWN: Final = -1
WHOLES: Final = tuple((WHOLE_GPU,) * count for count in range(GPUS_PER_NODE_MAX + 1))


class Part(NamedTuple):
    """A partly held device: what is free, the sharing domain that may use it, and how its parts are
    isolated.
    """

    free: int
    sharing_domain: str
    isolation: str = ""
    slices: int = 0
    single: bool = False


class DeviceFit(NamedTuple):
    """One way in which a node can serve a request.

    Devices by index, the share taken of each, what each had free before, and the levels that they
    cross (`hardware.Picked`).
    """

    devices: tuple[int, ...] = ()
    share: int = 0
    lefts: tuple[int, ...] = ()
    crossed: int = 0
    slices: tuple[int, ...] = ()

    @property
    def left(self) -> int:
        """Return the free capacity of the device with the most, in hundredths."""
        return max(self.lefts, default=0)


class Build(NamedTuple):
    """The properties that decide whether an idle node could serve a request for resources."""

    hardware: Hardware
    cpus_milli: int
    memory_bytes: int


class Place:
    """The node state. `whole` are the wholly free devices, as bits; `parts` the partly
    held ones.
    """

    def __init__(
        self,
        index: int,
        node: Node,
        views: list[GpuView],
        hardware: Hardware,
        jobs: dict[JobId, Job],
    ) -> None:
        self.index: Final = index
        self.node_id: Final[NodeId] = node.node_id
        self.node = node
        self.incarnation: Final = node.incarnation
        self.rack: Final = node.network_rack
        self.spine: Final = node.spine
        self.jobs: Final = jobs
        self.views: Final = views
        self.gpus: Final = tuple(view.gpu for view in views)
        self.hardware: Final = hardware
        self.build: Final = Build(hardware, node.cpus_milli, node.memory_bytes)
        self.whole = 0
        self.parts: dict[int, Part] = {}
        # The free shares of all open devices, least first; and the largest of them.
        self.lefts: tuple[int, ...] = ()
        self.widest = 0
        # A value that a strategy computed for the present state.
        self.noted: tuple[object, tuple[int, ...], int, float] | None = None
        self.cpus_free = UNKNOWN
        self.memory_free = UNKNOWN
        self.holds: Final = tuple(GpuHold(gpu.uuid) for gpu in self.gpus)
        self.bit: Final = {gpu.uuid: 1 << index for index, gpu in enumerate(self.gpus)}

    def needs(self, request: ResourceRequest) -> Needs:
        """Return what each device would have to give this request."""
        return needs_of(self.gpus, request) if request.uuids else self.hardware.needs(request)

    def is_meant(self, request: ResourceRequest) -> bool:
        """Return whether the node itself suits the job: its name, labels and means.

        Devices are not considered.
        """
        if self.node_id in request.excluded or (
            request.means and lacking(self.node.isolation, request.means)
        ):
            return False
        listed = not request.node_list or self.node_id in request.node_list
        return listed and all(self.node.labels.get(name) == value for name, value in request.labels)

    def admits(self, request: ResourceRequest) -> bool:
        """Return whether the node suits the job and runs no job with a label of its
        anti-affinity.
        """
        if not self.is_meant(request):
            return False
        jobs = (
            (self.jobs[job_id].spec.labels for job_id in self.node.members)
            if request.anti_affinity
            else ()
        )
        return not any(
            labels.get(name) == value for labels in jobs for name, value in request.anti_affinity
        )

    def could_serve(self, request: ResourceRequest) -> bool:
        """Return whether the node could serve a member with no job running on it."""
        if (
            request.cpus_milli > self.node.cpus_milli
            or request.memory_bytes > self.node.memory_bytes
        ):
            return False
        if not self.is_meant(request):
            return False
        kinds = _alike(self, request, self.needs(request).mask)
        return not request.gpus or any(
            self.hardware.pick(kind, request.gpus, request) is not NONE for kind in kinds
        )

    def give(self, holds: Sequence[GpuHold], request: ResourceRequest, sharing_domain: str) -> None:
        """Take these holds, and the CPUs and memory of the request, from what is free."""
        self.whole &= ~sum(map(self.bit.__getitem__, map(uuid_of, holds)))
        if request.share != WHOLE_GPU:
            for hold in holds:
                self._give_part(self.bit[hold.uuid].bit_length() - 1, hold, sharing_domain)
        self.widen()
        if request.cpus_milli:
            self.cpus_free -= request.cpus_milli
        if request.memory_bytes:
            self.memory_free -= request.memory_bytes

    def _give_part(self, device: int, hold: GpuHold, sharing_domain: str) -> None:
        before = self.parts.pop(device, None)
        left = (before.free if before is not None else WHOLE_GPU) - hold.share
        if left > 0:
            slices = (before.slices if before is not None else 0) | hold.mig_slices
            single = (before is not None and before.single) or hold.mig_profile.endswith(mig.SINGLE)
            self.parts[device] = Part(
                free=left,
                sharing_domain=sharing_domain,
                isolation=hold.isolation,
                slices=slices,
                single=single,
            )

    def widen(self) -> None:
        """Update the fields derived from `whole` and `parts`."""
        lefts = WHOLES[self.whole.bit_count()]
        if self.parts:
            lefts = (*sorted([part.free for part in self.parts.values()]), *lefts)
        self.lefts = lefts
        self.widest = lefts[-1] if lefts else 0

    def taken(self, fit: DeviceFit, request: ResourceRequest) -> tuple[GpuHold, ...]:
        """Return the devices of a fit as the fact records them."""
        if fit.share == WHOLE_GPU and not request.isolation:
            return tuple(map(self.holds.__getitem__, fit.devices))
        uuids = [self.gpus[device].uuid for device in fit.devices]
        if not fit.slices:
            return tuple(GpuHold(uuid, fit.share, request.isolation) for uuid in uuids)
        return tuple(
            GpuHold(
                uuid=u,
                share=fit.share,
                isolation=MIG,
                mig_profile=request.mig_profile,
                mig_slices=at,
            )
            for u, at in zip(uuids, fit.slices, strict=True)
        )


def host_serves(place: Place, request: ResourceRequest) -> bool:
    """Return whether the host has enough CPUs and memory free."""
    return (not request.cpus_milli or request.cpus_milli <= place.cpus_free) and (
        not request.memory_bytes or request.memory_bytes <= place.memory_free
    )


def fits(
    place: Place, request: ResourceRequest, sharing_domain: str, needs: Needs
) -> Iterator[DeviceFit]:
    """Yield every device fit that a strategy should consider: of devices that are equal in what
    matters, the first.
    """
    if request.gpus == 0:
        yield DeviceFit()
    elif request.mig_profile:
        yield from _instances(place, request, sharing_domain, needs)
    elif request.whole:
        yield from _whole_fits(place, request, needs)
    else:
        yield from _shares(place, request, sharing_domain, needs)


def _whole_fits(place: Place, request: ResourceRequest, needs: Needs) -> Iterator[DeviceFit]:
    for free in _alike(place, request, place.whole & needs.mask):
        picked = place.hardware.pick(free, request.gpus, request)
        if picked is not NONE:
            yield DeviceFit(_devices(picked.mask), WHOLE_GPU, WHOLES[request.gpus], picked.crossed)


def _shares(
    place: Place, request: ResourceRequest, sharing_domain: str, needs: Needs
) -> Iterator[DeviceFit]:
    """Yield fits of parts of devices.

    For one device, each that differs in what it has free. For several, as few newly opened devices
    as their topology allows.
    """
    free = dict.fromkeys(_devices(place.whole & needs.mask), WHOLE_GPU)
    free |= {
        index: part.free
        for index, part in place.parts.items()
        if needs.parts[index] and _is_open(part, request, sharing_domain, needs.parts[index])
    }
    if request.gpus == 1:
        first = {
            (left, needs.parts[index]): index for index, left in sorted(free.items(), reverse=True)
        }
        for index in sorted(first.values()):
            yield DeviceFit((index,), needs.parts[index], (free[index],))
        return
    for need in dict.fromkeys(needs.parts[index] for index in free):
        for kinds in _alike(
            place, request, sum(1 << index for index in free if needs.parts[index] == need)
        ):
            opened = (
                kinds & ~place.whole
                if (kinds & ~place.whole).bit_count() >= request.gpus
                else kinds
            )
            for group in (opened, kinds):
                picked = place.hardware.pick(group, request.gpus, request)
                if picked is not NONE:
                    devices = _devices(picked.mask)
                    yield DeviceFit(
                        devices, need, tuple(free[device] for device in devices), picked.crossed
                    )
                    break


def _is_open(part: Part, request: ResourceRequest, sharing_domain: str, need: int) -> bool:
    return (
        part.free >= need
        and part.sharing_domain == sharing_domain
        and part.isolation == request.isolation
    )


def _instances(
    place: Place, request: ResourceRequest, sharing_domain: str, needs: Needs
) -> Iterator[DeviceFit]:
    """Yield the first free place of a MIG instance on each device; partly used devices
    come first.
    """
    found: list[tuple[int, int, int]] = []
    for index, need in enumerate(needs.parts):
        part = (
            Part(WHOLE_GPU, sharing_domain, MIG)
            if place.whole >> index & 1
            else place.parts.get(index)
        )
        if need and part is not None and _is_open(part, request, sharing_domain, need):
            slices = _slices(place, index, part, request.mig_profile)
            if slices:
                found.append((part.free, index, slices))
    found.sort()
    if request.gpus == 1:
        for free, index, slices in found:
            yield DeviceFit(
                devices=(index,),
                share=needs.parts[index],
                lefts=(free,),
                crossed=0,
                slices=(slices,),
            )
    elif len(found) >= request.gpus:
        chosen = found[: request.gpus]
        need = needs.parts[chosen[0][1]]
        if all(needs.parts[index] == need for _, index, _ in chosen):
            lefts, devices, slices_of = zip(*chosen, strict=True)
            yield DeviceFit(devices, share=need, lefts=lefts, crossed=0, slices=slices_of)


def _slices(place: Place, index: int, part: Part, profile: str) -> int:
    """Return the first legal place that is free; 0 if there is none."""
    card = mig.card_of(place.views[index].gpu.mig_profiles)
    if part.single and profile.endswith(mig.SINGLE):
        return 0
    return next((mask for mask in mig.masks(card, profile) if not mask & part.slices), 0)


def _alike(place: Place, request: ResourceRequest, free: int) -> list[int]:
    """Return the free devices by model, unless the job accepts a mixture."""
    models = place.hardware.models
    return (
        [free]
        if request.mixed or len(models) == 1
        else [found for mask in models.values() if (found := free & mask)]
    )


def _devices(mask: int) -> tuple[int, ...]:
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(found)
