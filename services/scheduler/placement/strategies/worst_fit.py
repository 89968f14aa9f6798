"""The widest fit: the device with the most free, then the node with the most free devices. Pure."""

from services.scheduler.placement.fill import WorkloadMix
from services.scheduler.placement.place import DeviceFit, Place
from services.scheduler.placement.resource_request import ResourceRequest


def score(place: Place, fit: DeviceFit, request: ResourceRequest, mix: WorkloadMix) -> int:
    return (fit.left << 8) + place.whole.bit_count()
