"""FGD and best fit by their published formulas, as scores for `packing.py`.

The source is ATC'23, hkust-adsl/kubernetes-scheduler-simulator. The scheduler does not use these
rules; they serve as a comparison. Scores are whole numbers from 0 to 100, as published, because the
truncation matters.
"""

from bisect import bisect_right
from math import exp
from typing import Final

from libs.common.model import WHOLE_GPU
from libs.common.state.arrivals import Arrival
from services.scheduler.placement.fill import WorkloadMix
from services.scheduler.placement.place import DeviceFit, Place
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.placement.strategies import Score
from services.scheduler.placement.strategies.fragmentation import after_fit

COVERED: Final = 0.95
CPUS_MILLI: Final = 128_000
GPUS: Final = 8 * WHOLE_GPU
# The published formulas count in thousandths of a GPU.
MILLI: Final = 10


def bestfit(place: Place, fit: DeviceFit, request: ResourceRequest, mix: WorkloadMix) -> int:
    """The least CPU and GPU left; of a node's devices the one with the least left, which is below
    every whole point of the score.
    """
    cpus = (place.cpus_free - request.cpus_milli) / CPUS_MILLI
    gpus = (sum(place.lefts) - fit.share * request.gpus) / GPUS
    return (int(100 * (1 - (0.5 * cpus + 0.5 * gpus))) << 8) - fit.left


def fgd(arrivals: tuple[tuple[Arrival, int], ...]) -> Score:
    """The least growth of what the usual pods could not use: of a node, the sum over them of the
    fragments that each would find.
    """
    usual = _usual(arrivals)
    steps = sorted({arrival.cpus_milli for arrival, _ in usual})
    kept: dict[tuple[str, int, tuple[int, ...]], float] = {}

    def fragments(model: str, cpus_milli: int, lefts: tuple[int, ...]) -> float:
        key = (model, bisect_right(steps, cpus_milli), lefts)
        found = kept.get(key)
        if found is None:
            found = kept[key] = sum(
                part * _fragment(arrival, model, cpus_milli, lefts) for arrival, part in usual
            )
        return found

    def score(place: Place, fit: DeviceFit, request: ResourceRequest, mix: WorkloadMix) -> int:
        model, lefts = place.hardware.gpus[0].model, place.lefts
        before = fragments(model, place.cpus_free, lefts)
        after = fragments(model, place.cpus_free - request.cpus_milli, after_fit(lefts, fit))
        return int(100 / (1 + exp(-(before - after) * MILLI / 1_000)))

    return score


def _usual(arrivals: tuple[tuple[Arrival, int], ...]) -> list[tuple[Arrival, float]]:
    total = sum(count for _, count in arrivals)
    chosen: list[tuple[Arrival, int]] = []
    for arrival, count in sorted(arrivals, key=lambda each: -each[1]):
        if sum(c for _, c in chosen) >= COVERED * total:
            break
        chosen.append((arrival, count))
    covered = sum(count for _, count in chosen)
    return [(arrival, count / covered) for arrival, count in chosen]


def _fragment(arrival: Arrival, model: str, cpus_milli: int, lefts: tuple[int, ...]) -> int:
    fitting = sum(1 for left in lefts if left >= arrival.share)
    can = arrival.gpus > 0 and cpus_milli >= arrival.cpus_milli and fitting >= arrival.gpus
    if not can or (arrival.models and model not in arrival.models):
        return sum(lefts)
    return sum(left for left in lefts if left < arrival.share)
