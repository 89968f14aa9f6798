"""The placement that loses least for the usual jobs: what they could pack on the node before and
after, as valued by `fill.py`.

Pure. Where CPUs are scarce, a job also suits a node that has as many CPUs per GPU left as the job
requests. The difference counts in coarse steps, and ties go to the node that registered first, so
nodes fill up one after the other. A whole device comes from the node with the fewest free ones.
Scarce GPU models are spared. Until a mix is learnt, this is best fit. See
docs/decisions/0013-value-of-a-free-part.md and
docs/decisions/0097-cpus-have-a-price-on-each-node.md.
"""

from math import floor
from typing import Final

from libs.common.model import WHOLE_GPU
from services.scheduler.placement.fill import WorkloadMix
from services.scheduler.placement.place import UNKNOWN, DeviceFit, Place
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.strategies import best_fit

# Hundredths of a device.
STEP: Final = 10
SCARCE: Final = 0.6
# Weight of the difference between the CPUs' price and the devices that the job takes.
UNEVEN: Final = 0.3
TIE_BITS: Final = 7
EPSILON: Final = 1e-9


def score(place: Place, fit: DeviceFit, request: ResourceRequest, mix: WorkloadMix) -> int:
    if mix.fills is None:
        return best_fit.score(place, fit, request, mix)
    if not place.hardware.gpus:
        return 0
    fill, scarce = mix.fills.of(place.hardware.gpus[0].model)
    before = place.lefts
    after = after_fit(before, fit)
    cpus = place.cpus_free
    cpus_after = cpus if cpus == UNKNOWN else cpus - request.cpus_milli
    taken = fit.share * request.gpus
    noted = place.noted
    if noted is None or noted[0] is not fill or noted[1] is not before or noted[2] != cpus:
        noted = place.noted = (fill, before, cpus, fill.value(before, cpus))
    kept = fill.value(after, cpus_after) - noted[3]
    if mix.fills.cpus_are_scarce and request.cpus_milli:
        # The CPUs' price: the same part of the devices left as they are of the CPUs left.
        kept -= UNEVEN * abs(request.cpus_milli * sum(before) // cpus - taken)
    steps = floor((kept + taken * (1 - SCARCE * scarce)) / STEP + EPSILON)
    tight = (1 << TIE_BITS) - 1 - place.whole.bit_count() if request.whole and request.gpus else 0
    return (steps << TIE_BITS) + tight


def after_fit(lefts: tuple[int, ...], fit: DeviceFit) -> tuple[int, ...]:
    """Return the free shares of the open devices after this fit, least first."""
    if not fit.devices:
        return lefts
    if fit.share == WHOLE_GPU:
        return lefts[: -len(fit.devices)]
    found = list(lefts)
    for left in fit.lefts:
        found.remove(left)
        if left > fit.share:
            found.append(left - fit.share)
    found.sort()
    return tuple(found)
