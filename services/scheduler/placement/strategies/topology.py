"""The placement that leaves the fewest devices unused beside its own: link groups, switches and
NUMA nodes are filled before others are opened.

Pure.
"""

from services.scheduler.placement.fill import WorkloadMix
from services.scheduler.placement.place import DeviceFit, Place
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.strategies import best_fit


def score(place: Place, fit: DeviceFit, request: ResourceRequest, mix: WorkloadMix) -> int:
    groups = place.hardware.groups
    touched = {group for device in fit.devices for group in enumerate(groups[device])}
    beside = sum(
        1
        for device, at in enumerate(groups)
        if place.whole >> device & 1 and not touched.isdisjoint(enumerate(at))
    )
    return best_fit.score(place, fit, request, mix) - (beside << 16)
