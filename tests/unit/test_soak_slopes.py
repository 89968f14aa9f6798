"""Slopes of a soak: a planted leak is found, noise is not, and a chart is whole XML."""

import random
from xml.etree import ElementTree

from bench.soak.chart import chart
from bench.soak.slopes import BLOCKS, rise, slope

EVERY_S = 5.0
SAMPLES = 240


def noisy(per_hour: float, seed: int = 1) -> list[float]:
    chance = random.Random(seed)
    return [
        100.0 + per_hour * index * EVERY_S / 3_600 + chance.gauss(0.0, 1.0)
        for index in range(SAMPLES)
    ]


TIMES = [index * EVERY_S for index in range(SAMPLES)]


def test_a_planted_leak_is_within_the_interval_and_is_not_flat() -> None:
    found = slope(TIMES, noisy(60.0))
    assert found is not None and not found.is_flat
    assert abs(found.per_hour - 60.0) <= 2 * found.half_width


def test_noise_around_a_constant_is_flat_nearly_always() -> None:
    found = [slope(TIMES, noisy(0.0, seed)) for seed in range(40)]
    assert sum(each is not None and each.is_flat for each in found) >= 34


def test_too_few_samples_have_no_slope() -> None:
    assert slope(TIMES[: BLOCKS - 1], noisy(0.0)[: BLOCKS - 1]) is None
    assert slope([0.0] * SAMPLES, noisy(0.0)) is None
    # All samples in the first half: some spans of time have none.
    assert slope([*TIMES[:100], 10_000.0], noisy(0.0)[:101]) is None


def test_a_rise_compares_the_last_third_with_the_first() -> None:
    assert rise([1.0, 2.0, 9.0, 9.0, 4.0, 3.0]) == 2.0
    assert rise([5.0]) == 0.0


def test_a_chart_is_whole_and_names_every_process() -> None:
    text = chart("Memory", "MiB", {"a&b": {"rss": [(0.0, 1.0), (60.0, 2.0)]}, "empty": {"rss": []}})
    root = ElementTree.fromstring(text)
    words = [each.text for each in root.iter() if each.text]
    assert "a&b" in words and "empty" in words and "1 min" in words
    assert len(list(root.iter("{http://www.w3.org/2000/svg}polyline"))) == 1
