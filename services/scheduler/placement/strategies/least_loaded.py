"""The least loaded node: the one with the smallest held part, then the device with the most free.

Pure.
"""

from libs.common.model import WHOLE_GPU
from services.scheduler.placement.fill import WorkloadMix
from services.scheduler.placement.place import DeviceFit, Place
from services.scheduler.placement.resource_request import ResourceRequest

STEPS = 1_000


def score(place: Place, fit: DeviceFit, request: ResourceRequest, mix: WorkloadMix) -> int:
    free = sum(place.lefts)
    return STEPS * free // max(1, len(place.views) * WHOLE_GPU) * WHOLE_GPU + fit.left
