"""The tightest: the device with the least free that serves, then the node with the fewest free
ones, so that whole ones stay whole.

Pure.
"""

from services.scheduler.placement.place import DeviceFit, Place
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.workload_mix import WorkloadMix


def score(place: Place, fit: DeviceFit, request: ResourceRequest, mix: WorkloadMix) -> int:
    return -((fit.left - fit.share) << 8) - place.whole.bit_count()
