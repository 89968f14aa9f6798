"""Where the fewest devices stay beside those that are taken: groups of links, switches and NUMA
nodes are used up before others are opened, racks before others.

Pure.
"""

from services.scheduler.placement.place import DeviceFit, Place
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.strategies import best_fit
from services.scheduler.placement.workload_mix import WorkloadMix


def score(place: Place, fit: DeviceFit, request: ResourceRequest, mix: WorkloadMix) -> int:
    groups = place.hardware.groups
    touched = {group for device in fit.devices for group in enumerate(groups[device])}
    beside = sum(
        1
        for device, at in enumerate(groups)
        if place.whole >> device & 1 and not touched.isdisjoint(enumerate(at))
    )
    return best_fit.score(place, fit, request, mix) - (beside << 16)
