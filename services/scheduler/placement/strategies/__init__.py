"""Which of the nodes that serve is best: one file per strategy, one function `score(place, take,
wish, scene)` each; the highest goes first, of equals the node that registered first.

This dictionary lists them.

Pure. Above every score stands the topology: a node on which the job's devices cross fewer levels is
always the better one.
"""

from collections.abc import Callable
from typing import Final

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
from services.scheduler.placement.workload_mix import WorkloadMix

Score = Callable[[Place, DeviceFit, ResourceRequest, WorkloadMix], int]

ROUND_ROBIN: Final = "round_robin"
DEFAULT: Final = "fragmentation"
STRATEGIES: Final[dict[str, Score]] = {
    "first_fit": first_fit.score,
    "best_fit": best_fit.score,
    "worst_fit": worst_fit.score,
    # As first fit, from the node after the last one that was given work.
    ROUND_ROBIN: first_fit.score,
    "least_loaded": least_loaded.score,
    "load_balanced": least_loaded.score,
    "fragmentation": fragmentation.score,
    "topology": topology.score,
}
# Those that this process has from plug-ins (`plugins.py`); which of them count, the log says
# (`libs/common/state/plugins.py`).
PLUGGED: Final[dict[str, Score]] = {}
