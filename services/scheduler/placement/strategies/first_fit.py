"""The first node that serves, by the order of registration. Pure."""

from services.scheduler.placement.fill import WorkloadMix
from services.scheduler.placement.place import DeviceFit, Place
from services.scheduler.placement.resource_request import ResourceRequest


def score(place: Place, fit: DeviceFit, request: ResourceRequest, mix: WorkloadMix) -> int:
    return 0
