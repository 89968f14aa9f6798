"""The node of whose devices the least part is held, then the device that has the most free: load is
spread.

Pure.
"""

from libs.common.model import WHOLE_GPU
from services.scheduler.placement.place import DeviceFit, Place
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.workload_mix import WorkloadMix

STEPS = 1_000


def score(place: Place, fit: DeviceFit, request: ResourceRequest, mix: WorkloadMix) -> int:
    free = sum(place.lefts)
    return STEPS * free // max(1, len(place.views) * WHOLE_GPU) * WHOLE_GPU + fit.left
