"""What free parts of devices are worth: how much the jobs that usually come could still pack on
them.

Pure: of the learnt mix alone (`libs/common/state/arrivals.py`). `value` of a node is the sum over
its open devices of what a random row of usual jobs fills of each; CPUs that are short are split
among them by what each would need. A device's value follows from those of smaller remainders, so
all are found once, when they are first asked for. How it compares with the field: `python -m
bench.packing`.
"""

from typing import Final, NamedTuple

from libs.common.model import WHOLE_GPU
from libs.common.state.arrivals import Arrival
from services.scheduler.placement.resource_request import STEP_MILLI, is_model

# A remainder is offered so many jobs before it counts as lost.
OFFERS: Final = 60
# The usual jobs are those that make up so much of all, in hundredths.
COVERED: Final = 95
# Values are kept up to so many; then they are found again.
KEPT_MAX: Final = 200_000


class Usual(NamedTuple):
    """A kind of job that usually comes: its part of all, GPUs, hundredths of each,
    steps of CPUs.
    """

    part: float
    gpus: int
    share: int
    steps: int


class Fill:
    """The values on cards on which these jobs may run."""

    def __init__(self, usual: tuple[Usual, ...]) -> None:
        self.usual: Final = usual
        self.rich = [0.0] * (WHOLE_GPU + 1)
        # What filling takes of CPUs: on the average, and at most.
        self.demand = [0.0] * (WHOLE_GPU + 1)
        self.most = [0] * (WHOLE_GPU + 1)
        self._poor: Final[dict[int, float]] = {}
        self._values: Final[dict[tuple[tuple[int, ...], int], float]] = {}
        for left in range(1, WHOLE_GPU + 1):
            self._look_at(left)

    def value(self, lefts: tuple[int, ...], cpus_milli: int) -> float:
        """Hundredths of devices; `lefts` are what is free of each open one, `cpus_milli` what of
        the host (below 0: enough).
        """
        steps = cpus_milli // STEP_MILLI if cpus_milli >= 0 else -1
        found = self._values.get((lefts, steps))
        if found is None:
            if len(self._values) >= KEPT_MAX:
                del self._values[next(iter(self._values))]  # the oldest
            found = self._values[lefts, steps] = self._value(lefts, steps)
        return found

    def _value(self, lefts: tuple[int, ...], steps: int) -> float:
        demand = sum([self.demand[left] for left in lefts])
        if steps < 0 or demand <= 0:
            return sum([self.rich[left] for left in lefts])
        found = 0.0
        for left in lefts:
            mine = steps * self.demand[left] / demand
            whole = int(mine)
            low = self._at(left, whole)
            found += (
                low if len(lefts) == 1 else low + (self._at(left, whole + 1) - low) * (mine - whole)
            )
        return found

    def _look_at(self, left: int) -> None:
        """The device's value, and its need of CPUs, when there are enough of them."""
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
        self.rich[left] = filled / chance * _meets(chance)
        self.demand[left] = taken / (chance + 1 / OFFERS)
        self.most[left] = max(
            -(-usual.steps // usual.gpus) + self.most[left - usual.share] for usual in fitting
        )

    def _at(self, left: int, steps: int) -> float:
        """The device's value with so many steps of CPUs."""
        if steps >= self.most[left]:
            return self.rich[left]
        key = left << 20 | steps
        found = self._poor.get(key)
        if found is None:
            found = self._poor[key] = self._poorly(left, steps)
        return found

    def _poorly(self, left: int, steps: int) -> float:
        chance = filled = 0.0
        for usual in self.usual:
            if _fits(usual, left) and usual.steps <= steps * usual.gpus:
                weight = usual.part * usual.gpus
                chance += weight
                filled += weight * (
                    usual.share
                    + self._at(left - usual.share, steps - -(-usual.steps // usual.gpus))
                )
        return filled / chance * _meets(chance) if chance > 0 else 0.0


def _fits(usual: Usual, left: int) -> bool:
    return usual.share <= left


def _meets(chance: float) -> float:
    """How likely one of the offered jobs fits.

    By multiplication only: a power is not the same on every machine.
    """
    misses, square, offers = 1.0, max(0.0, 1.0 - chance), OFFERS
    while offers:
        if offers & 1:
            misses *= square
        square *= square
        offers >>= 1
    return 1.0 - misses


class Fills:
    """The values for every model of card, and what it costs to take a scarce one without need (0:
    nothing, 1: all).
    """

    def __init__(
        self,
        arrivals: tuple[tuple[Arrival, int], ...],
        capacity: dict[str, int],
        before: "Fills | None" = None,
    ) -> None:
        self.arrivals: Final = arrivals
        self.capacity: Final = capacity
        self._of: Final[dict[str, tuple[Fill, float]]] = {}
        self._known: Final[dict[tuple[Usual, ...], Fill]] = (
            before._known if before is not None and before.arrivals == arrivals else {}
        )

    def of(self, model: str) -> tuple[Fill, float]:
        found = self._of.get(model)
        if found is None:
            usual = self._usual(model)
            fill = self._known.get(usual) or self._known.setdefault(usual, Fill(usual))
            found = self._of[model] = (fill, self._scarce(model))
        return found

    def _usual(self, model: str) -> tuple[Usual, ...]:
        """The most frequent arrivals that make up nearly all of them; of those, what may run on the
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
        allowed = [(a, c) for a, c in chosen if a.gpus and _may(a, model)]
        return tuple(
            Usual(c / devices, a.gpus, a.share, -(-a.cpus_milli // STEP_MILLI)) for a, c in allowed
        )

    def _scarce(self, model: str) -> float:
        """The part of all GPUs that those ask for who may run on this model and not on every one,
        by what there is of theirs.
        """
        volume = sum(count * a.gpus * a.share for a, count in self.arrivals)
        total = sum(self.capacity.values())
        scarce = 0.0
        for arrival, count in self.arrivals:
            theirs = (
                sum([have for name, have in self.capacity.items() if _may(arrival, name)])
                if arrival.models
                else total
            )
            if 0 < theirs < total and _may(arrival, model):
                scarce += count * arrival.gpus * arrival.share / volume * total / theirs
        return min(1.0, scarce)


def _may(arrival: Arrival, model: str) -> bool:
    return not arrival.models or any(is_model(name, model) for name in arrival.models)
