"""Placement strategies: one file each, with one function `score(place, fit, request, mix)`.

The highest score wins; among equals, the node that registered first. `STRATEGIES` lists the
built-in ones. Pure. Topology outranks every score: a node on which the job's devices cross fewer
levels is always better.
"""

from collections.abc import Callable
from typing import Final

from services.scheduler.placement.fill import WorkloadMix
from services.scheduler.placement.place import DeviceFit, Place
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.strategies import (
    best_fit,
    first_fit,
    fragmentation,
    least_loaded,
    topology,
    worst_fit,
)

Score = Callable[[Place, DeviceFit, ResourceRequest, WorkloadMix], int]

ROUND_ROBIN: Final = "round_robin"
DEFAULT: Final = "fragmentation"
STRATEGIES: Final[dict[str, Score]] = {
    "first_fit": first_fit.score,
    "best_fit": best_fit.score,
    "worst_fit": worst_fit.score,
    # Like first fit, starting after the node of the last placement.
    ROUND_ROBIN: first_fit.score,
    "least_loaded": least_loaded.score,
    "load_balanced": least_loaded.score,
    "fragmentation": fragmentation.score,
    "topology": topology.score,
}
# Strategies that this process loaded from plug-ins (`plugins.py`). The log tells which of them
# count (`libs/common/state/plugins.py`).
PLUGGED: Final[dict[str, Score]] = {}
