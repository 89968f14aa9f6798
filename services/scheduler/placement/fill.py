"""The worth of free parts of devices: how much the usual jobs could still pack on them.

Pure, from the learnt mix alone (`libs/common/state/arrivals.py`). The value of a node is the sum
over its open devices of what a random sequence of usual jobs fills of each. Scarce CPUs are split
among the devices by their needs, or among those of them for which they are enough. A device's value
follows from those of smaller remainders, so all are computed once. `python -m bench.packing`
compares it with other strategies.
"""

from typing import Final, NamedTuple

from libs.common.model import WHOLE_GPU
from libs.common.state.arrivals import Arrival
from services.scheduler.placement.resource_request import STEP_MILLI, is_model

# Number of jobs offered to a remainder before it counts as lost.
OFFERS: Final = 60
# CPUs are scarce if the mix requests more than this many hundredths of them with all GPUs.
AMPLE_CPUS: Final = 90
# The usual jobs make up this many hundredths of all jobs.
COVERED: Final = 95
# Number of cached values; then the cache is cleared.
KEPT_MAX: Final = 200_000


class Usual(NamedTuple):
    """A kind of job that usually comes: its part of all jobs, GPUs, hundredths of
    each, CPU steps.
    """

    part: float
    gpus: int
    share: int
    steps: int


class Fill:
    """The values of GPUs on which these jobs may run."""

    def __init__(self, usual: tuple[Usual, ...]) -> None:
        self.usual: Final = usual
        self.rich = [0.0] * (WHOLE_GPU + 1)
        # The CPUs that filling takes: on average, and at most.
        self.demand = [0.0] * (WHOLE_GPU + 1)
        self.most = [0] * (WHOLE_GPU + 1)
        self._poor: Final[dict[int, float]] = {}
        self._values: Final[dict[tuple[tuple[int, ...], int], float]] = {}
        for left in range(1, WHOLE_GPU + 1):
            self._compute(left)

    def value(self, lefts: tuple[int, ...], cpus_milli: int) -> float:
        """Return the value in hundredths of devices.

        `lefts` are the free parts of the open devices; `cpus_milli` is what the host has free
        (below 0: enough).
        """
        steps = cpus_milli // STEP_MILLI if cpus_milli >= 0 else -1
        found = self._values.get((lefts, steps))
        if found is None:
            if len(self._values) >= KEPT_MAX:
                del self._values[next(iter(self._values))]  # the oldest
            found = self._values[lefts, steps] = self._value(lefts, steps)
        return found

    def _value(self, lefts: tuple[int, ...], steps: int) -> float:
        """Return the value if the CPUs are split among as many devices as is best: where they are
        too few for all, the devices with the least free get none.
        """
        return max(
            [self._value_of_split(lefts[first:], steps) for first in range(len(lefts))], default=0.0
        )

    def _value_of_split(self, lefts: tuple[int, ...], steps: int) -> float:
        demand = sum([self.demand[left] for left in lefts])
        if steps < 0 or demand <= 0:
            return sum([self.rich[left] for left in lefts])
        found = 0.0
        for left in lefts:
            mine = steps * self.demand[left] / demand
            whole = int(mine)
            low = self._value_with_cpus(left, whole)
            found += (
                low
                if len(lefts) == 1
                else low + (self._value_with_cpus(left, whole + 1) - low) * (mine - whole)
            )
        return found

    def _compute(self, left: int) -> None:
        """Compute the value and the CPU need of a remainder when CPUs are plenty."""
        fitting = [usual for usual in self.usual if _fits(usual, left)]
        chance = sum([usual.part * usual.gpus for usual in fitting])
        if chance <= 0:
            return
        filled = sum(
            [
                usual.part * usual.gpus * (usual.share + self.rich[left - usual.share])
                for usual in fitting
            ]
        )
        taken = sum(
            [
                usual.part * (usual.steps + usual.gpus * self.demand[left - usual.share])
                for usual in fitting
            ]
        )
        self.rich[left] = filled / chance * _fit_probability(chance)
        self.demand[left] = taken / (chance + 1 / OFFERS)
        self.most[left] = max(
            -(-usual.steps // usual.gpus) + self.most[left - usual.share] for usual in fitting
        )

    def _value_with_cpus(self, left: int, steps: int) -> float:
        """Return the value of a remainder with this many CPU steps."""
        if steps >= self.most[left]:
            return self.rich[left]
        key = left << 20 | steps
        found = self._poor.get(key)
        if found is None:
            found = self._poor[key] = self._value_of_scarce_steps(left, steps)
        return found

    def _value_of_scarce_steps(self, left: int, steps: int) -> float:
        chance = filled = 0.0
        for usual in self.usual:
            if _fits(usual, left) and usual.steps <= steps * usual.gpus:
                weight = usual.part * usual.gpus
                chance += weight
                filled += weight * (
                    usual.share
                    + self._value_with_cpus(
                        left - usual.share, steps - -(-usual.steps // usual.gpus)
                    )
                )
        return filled / chance * _fit_probability(chance) if chance > 0 else 0.0


def _fits(usual: Usual, left: int) -> bool:
    return usual.share <= left


def _fit_probability(chance: float) -> float:
    """Return the probability that one of the offered jobs fits.

    By multiplication only, because a power is not the same on every machine.
    """
    misses, square, offers = 1.0, max(0.0, 1.0 - chance), OFFERS
    while offers:
        if offers & 1:
            misses *= square
        square *= square
        offers >>= 1
    return 1.0 - misses


class Fills:
    """The values for every GPU model, and the cost of using a scarce one without need (0: none, 1:
    all).
    """

    def __init__(
        self,
        arrivals: tuple[tuple[Arrival, int], ...],
        capacity: dict[str, int],
        cpus_milli: int,
        before: "Fills | None" = None,
    ) -> None:
        self.arrivals: Final = arrivals
        self.capacity: Final = capacity
        cpus_asked = sum([count * a.cpus_milli for a, count in arrivals])
        gpus_asked = sum([count * a.gpus * a.share for a, count in arrivals])
        self.cpus_are_scarce: Final = (
            100 * cpus_asked * sum(capacity.values()) > AMPLE_CPUS * cpus_milli * gpus_asked
        )
        self._of: Final[dict[str, tuple[Fill, float]]] = {}
        self._known: Final[dict[tuple[Usual, ...], Fill]] = (
            before._known if before is not None and before.arrivals == arrivals else {}
        )

    def of(self, model: str) -> tuple[Fill, float]:
        """Return the values for this model, and its scarcity."""
        found = self._of.get(model)
        if found is None:
            usual = self._usual(model)
            fill = self._known.get(usual) or self._known.setdefault(usual, Fill(usual))
            found = self._of[model] = (fill, self._scarce(model))
        return found

    def _usual(self, model: str) -> tuple[Usual, ...]:
        """Return the most frequent jobs that make up nearly all, as far as they may run on the
        model.
        """
        total = sum(count for _, count in self.arrivals)
        chosen: list[tuple[Arrival, int]] = []
        reached = 0
        for arrival, count in sorted(self.arrivals, key=lambda each: (-each[1], each[0])):
            if 100 * reached >= COVERED * total:
                break
            chosen.append((arrival, count))
            reached += count
        devices = sum(count for arrival, count in chosen if arrival.gpus)
        allowed = [(a, c) for a, c in chosen if a.gpus and _may_run_on(a, model)]
        return tuple(
            Usual(c / devices, a.gpus, a.share, -(-a.cpus_milli // STEP_MILLI)) for a, c in allowed
        )

    def _scarce(self, model: str) -> float:
        """Return how scarce this model is: the part of all requested GPUs that must be of a
        restricted set of models with this one in it, by what the cluster has of that set.
        """
        volume = sum(count * a.gpus * a.share for a, count in self.arrivals)
        total = sum(self.capacity.values())
        scarce = 0.0
        for arrival, count in self.arrivals:
            theirs = (
                sum([have for name, have in self.capacity.items() if _may_run_on(arrival, name)])
                if arrival.models
                else total
            )
            if 0 < theirs < total and _may_run_on(arrival, model):
                scarce += count * arrival.gpus * arrival.share / volume * total / theirs
        return min(1.0, scarce)


def _may_run_on(arrival: Arrival, model: str) -> bool:
    return not arrival.models or any(is_model(name, model) for name in arrival.models)


class WorkloadMix(NamedTuple):
    """The usual resource requests of jobs, which a strategy may consider beside the node.

    `fills` is None until arrivals have been learnt.
    """

    fills: Fills | None = None
