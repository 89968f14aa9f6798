"""Two systems measured in turns, so that a noisy moment of the machine hits both."""

import sys
from collections.abc import Callable, Mapping
from statistics import median

from bench.cluster import QUICK, say
from bench.peers import Missing

ROUNDS = 3 if QUICK else 5


def in_turns(
    figures: Mapping[str, str], measure: Mapping[str, Callable[[], float]], unit: str
) -> None:
    """Measure each system ROUNDS times in turns, and print the medians and ratios.

    `measure` gives a value per system; the first one is Muster. `figures` names the ratio of
    Muster's value to that of each other system. A figure is the median of the rounds' ratios.
    """
    ours, *others = measure
    found: dict[str, list[float]] = {name: [] for name in measure}
    for _ in range(ROUNDS):
        for name, once in measure.items():
            found[name].append(once())
    for name, values in found.items():
        say(name, median(values), unit, ROUNDS, low=min(values), high=max(values))
    for name in others:
        ratios = [a / b for a, b in zip(found[ours], found[name], strict=True)]
        say(figures[name], median(ratios), "ratio", ROUNDS, low=min(ratios), high=max(ratios))


def skipped(error: Missing) -> None:
    """Say that a peer was not measured, and why."""
    print(f"skipped: {error}", file=sys.stderr)
