"""Computes how many replicas a model needs, from its users' waiting times and its waiting tokens.

The law: the pressure is the larger of (p90 time to first token / its target) and (p90 time per
output token / its target), as a mean of 45 s. Above 0.55 replicas are added, below 0.40 removed.
Tokens that wait in the gateway are demand too, so a model without replicas gets one. Every number
of the law is returned, so that `muster models` can print it. Pure. Tests:
tests/unit/test_scheduler_autoscaling.py, tests/property/test_scaling_law.py. `demand.py`
gives it the reports of the gateways.
"""

from collections import deque
from typing import Final, NamedTuple

SECOND_NS: Final = 1_000_000_000
# Pressures are in thousandths.
MILLI: Final = 1_000
PRESSURE_MAX: Final = 2_000
MEAN_NS: Final = 45 * SECOND_NS
GROW_ABOVE: Final = 550
SHRINK_BELOW: Final = 400
# More replicas are wanted only if they were wanted for this long; fewer likewise.
GROW_AFTER_NS: Final = 30 * SECOND_NS
SHRINK_AFTER_NS: Final = 180 * SECOND_NS
# At most twice as many, or so many more, in this time.
GROW_STEP: Final = 4
GROW_EVERY_NS: Final = 60 * SECOND_NS
# At most one less in this time.
SHRINK_EVERY_NS: Final = 120 * SECOND_NS
# Samples that are kept; one per second fills the longest window.
SAMPLES_MAX: Final = 1_024
# What holds the number back.
AT_MOST: Final = "at_most"
AT_LEAST: Final = "at_least"
GROWS_SLOWLY: Final = "grows_slowly"
SHRINKS_SLOWLY: Final = "shrinks_slowly"
NOT_YET: Final = "not_yet"


class Targets(NamedTuple):
    """The request of the model's owner. A target of 0 is not set.

    `concurrency`: requests at one replica. `queue_ns`: waiting tokens are to be gone in this time.
    `idle_ns`: without any request for this long the model may have no replica.
    """

    least: int
    most: int
    first_token_ns: int
    per_token_ns: int = 0
    queue_ns: int = 10 * SECOND_NS
    idle_ns: int = 300 * SECOND_NS
    concurrency: int = 0


class Signals(NamedTuple):
    """The observations. `replicas` counts those that start too.

    `outstanding` counts waiting requests too. `replica_tokens_per_s` is the rate of one replica, 0
    if it is not known. `idle_ns` is the time since a request last began or ended, None if that is
    not known: `outstanding` misses requests that end between two reports.
    """

    replicas: int
    ready: int
    first_token_p90_ns: int
    per_token_p90_ns: int
    waiting_tokens: int
    outstanding: int
    replica_tokens_per_s: int
    idle_ns: int | None = None


class Scaling(NamedTuple):
    """The number of replicas to have, and how it was computed.

    `by_pressure`, `by_queue` and `by_concurrency` are what the parts of the law want; `held_by`
    says what kept `replicas` away from the largest of them, empty if nothing did.
    """

    replicas: int
    pressure_milli: int
    by_pressure: int
    by_queue: int
    held_by: str
    by_concurrency: int = 0


class Autoscaling:
    """The law with its memory, for one model."""

    def __init__(self, targets: Targets) -> None:
        self.targets = targets
        self._pressures: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        self._wants: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        self._counts: deque[tuple[int, int]] = deque(maxlen=SAMPLES_MAX)
        self._busy_ns: int | None = None
        self._shrunk_ns = -SHRINK_EVERY_NS

    def decide(self, signals: Signals, now_ns: int) -> Scaling:
        """Return the number of replicas to have from now on. Call it about once a second."""
        if self._busy_ns is None or signals.waiting_tokens or signals.outstanding:
            self._busy_ns = now_ns
        elif signals.idle_ns is not None:
            self._busy_ns = max(self._busy_ns, now_ns - max(0, signals.idle_ns))
        pressure = self._mean(self._pressure(signals), now_ns)
        is_idle = now_ns - self._busy_ns >= self.targets.idle_ns
        if is_idle and self.targets.least == 0:
            return Scaling(0, pressure, 0, 0, "")
        by_pressure = _by_pressure(signals, pressure)
        by_queue, by_concurrency = self._by_queue(signals), self._by_concurrency(signals)
        want = max(by_pressure, by_queue, by_concurrency)
        replicas, held_by = self._held(signals, want, now_ns)
        return Scaling(
            replicas=replicas,
            pressure_milli=pressure,
            by_pressure=by_pressure,
            by_queue=by_queue,
            held_by=held_by,
            by_concurrency=by_concurrency,
        )

    def _pressure(self, signals: Signals) -> int:
        ratios = [
            seen * MILLI // target
            for seen, target in (
                (signals.first_token_p90_ns, self.targets.first_token_ns),
                (signals.per_token_p90_ns, self.targets.per_token_ns),
            )
            if target
        ]
        return min(PRESSURE_MAX, max(ratios, default=0))

    def _mean(self, pressure: int, now_ns: int) -> int:
        _add(self._pressures, pressure, now_ns, MEAN_NS)
        return sum(each for _, each in self._pressures) // len(self._pressures)

    def _by_queue(self, signals: Signals) -> int:
        if not signals.waiting_tokens:
            return 0
        if not signals.replica_tokens_per_s:
            return 1
        tokens = signals.replica_tokens_per_s * self.targets.queue_ns // SECOND_NS
        return -(-signals.waiting_tokens // max(1, tokens))

    def _by_concurrency(self, signals: Signals) -> int:
        target = self.targets.concurrency
        return -(-signals.outstanding // target) if target else 0

    def _held(self, signals: Signals, want: int, now_ns: int) -> tuple[int, str]:
        """Return the number within all bounds, and the bound that changed it last."""
        count = signals.replicas
        if not self._wants:
            self._wants.append((now_ns, count))
        base = _add(self._counts, count, now_ns, GROW_EVERY_NS)
        lowest, highest = self._recent(want, now_ns)
        if count == 0 < want:
            number, held_by = want, ""
        elif want > count:
            number, held_by = max(count, lowest), NOT_YET if lowest < want else ""
        else:
            number, held_by = min(count, highest), NOT_YET if highest > want else ""
        step = base + max(base, GROW_STEP)
        if number > step:
            number, held_by = max(count, step), GROWS_SLOWLY
        if number < count:
            if now_ns - self._shrunk_ns < SHRINK_EVERY_NS:
                number, held_by = count, SHRINKS_SLOWLY
            elif number < count - 1:
                number, held_by = count - 1, SHRINKS_SLOWLY
        if not self.targets.least <= number <= self.targets.most:
            held_by = AT_LEAST if number < self.targets.least else AT_MOST
            number = min(self.targets.most, max(self.targets.least, number))
        if number < count:
            self._shrunk_ns = now_ns
        return number, held_by

    def _recent(self, want: int, now_ns: int) -> tuple[int, int]:
        """Return the lowest and the highest number that was wanted recently.

        The lowest one is that of the time before growth, the highest that of the time before
        shrinking.
        """
        _add(self._wants, want, now_ns, SHRINK_AFTER_NS)
        late = [each for when, each in self._wants if now_ns - when <= GROW_AFTER_NS]
        return min(late), max(each for _, each in self._wants)


def _by_pressure(signals: Signals, pressure: int) -> int:
    count = signals.replicas
    if count and pressure > GROW_ABOVE:
        # Replicas that start are the answer to this pressure: the law counts ready ones only.
        return max(count, -(-pressure * signals.ready // GROW_ABOVE))
    if count and pressure < SHRINK_BELOW:
        return max(1, count - count * (SHRINK_BELOW - pressure) // SHRINK_BELOW)
    return count


def _add(samples: deque[tuple[int, int]], value: int, now_ns: int, kept_ns: int) -> int:
    """Add a sample, drop those that are too old, and return the lowest one left."""
    samples.append((now_ns, value))
    while now_ns - samples[0][0] > kept_ns:
        samples.popleft()
    return min(each for _, each in samples)
