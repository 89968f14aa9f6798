"""The tightest fit: the device with the least free that serves, then the node with the fewest whole
free devices, so that whole devices stay whole.

Pure.
"""

from services.scheduler.placement.fill import WorkloadMix
from services.scheduler.placement.place import DeviceFit, Place
from services.scheduler.placement.resource_request import ResourceRequest


def score(place: Place, fit: DeviceFit, request: ResourceRequest, mix: WorkloadMix) -> int:
    return -((fit.left - fit.share) << 8) - place.whole.bit_count()
