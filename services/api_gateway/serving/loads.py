"""Counts what each replica has to do: outstanding requests, and input tokens that are sent and not
processed yet; and notices replicas that are slow or silent.

A request is counted before it is sent. The own count is the one source: a replica's report only
adds what other gateways sent to it. Pure. Tests: tests/unit/test_serving_loads.py, and
tests/unit/test_serving_routing.py with one test per rule of docs/serving.md.
"""

from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

SECOND_NS: Final = 1_000_000_000
# Input tokens per second of a replica that was not measured yet.
FIRST_RATE: Final = 16_000
RATE_MIN: Final = 50
# Smaller requests say more about the engine's step than about its rate.
MEASURED_TOKENS: Final = 512
# Each measurement moves the rate by this part of the difference.
RATE_STEP: Final = 50
# A first token is late if it takes this many times what was expected, and at least the floor.
LATE_FACTOR: Final = 8
LATE_FLOOR_NS: Final = 2 * SECOND_NS
# So many late first tokens in a row, without one in time, and the replica is avoided.
LATE_IN_A_ROW: Final = 3
AVOID_NS: Final = 3 * SECOND_NS
AVOID_MAX_NS: Final = 60 * SECOND_NS
# A report that is older than this says nothing about now.
REPORT_NS: Final = 10 * SECOND_NS
# Changes of the own count that are kept, to compare a report with the count at its time.
CHANGES_MAX: Final = 1_024

Replica = TypeVar("Replica", bound=Hashable)


class Sent(Generic[Replica]):
    """A request that was sent to a replica. `miss` are the input tokens that its cache lacks."""

    __slots__ = ("began_ns", "expected_ns", "miss", "queue", "replica", "started")

    def __init__(
        self, replica: Replica, miss: int, queue: int, began_ns: int, expected_ns: int
    ) -> None:
        self.replica = replica
        self.miss = miss
        self.queue = queue
        self.began_ns = began_ns
        self.expected_ns = expected_ns
        self.started = False


class Load(Generic[Replica]):
    """The load of one replica."""

    def __init__(self) -> None:
        self.outstanding = 0
        self.pending = 0
        self.rate = FIRST_RATE
        self.late = 0
        self.avoided = 0
        self.avoid_until_ns = 0
        self.elsewhere = 0
        self.full = False
        self.reported_ns = -REPORT_NS
        self.waiting: dict[int, Sent[Replica]] = {}
        self.changes: deque[tuple[int, int]] = deque(maxlen=CHANGES_MAX)

    def running(self, now_ns: int) -> int:
        """Return the requests at the replica: the own ones, and those that its last report showed
        beyond them.
        """
        return self.outstanding + (self.elsewhere if self._is_fresh(now_ns) else 0)

    def expected_ns(self, miss: int) -> int:
        """Return how long a request waits for its first token if it is sent now."""
        return (self.pending + miss) * SECOND_NS // self.rate

    def is_vetoed(self, now_ns: int) -> bool:
        """Return whether the replica's own last report says that it is full."""
        return self.full and self._is_fresh(now_ns)

    def is_avoided(self, now_ns: int) -> bool:
        """Return whether errors or late first tokens were observed recently, or whether it is
        silent now.
        """
        return now_ns < self.avoid_until_ns or self._is_silent(now_ns)

    def _is_silent(self, now_ns: int) -> bool:
        if len(self.waiting) < LATE_IN_A_ROW:
            return False
        oldest = next(iter(self.waiting.values()))
        return now_ns - oldest.began_ns > _late_after_ns(oldest)

    def _is_fresh(self, now_ns: int) -> bool:
        return now_ns - self.reported_ns < REPORT_NS

    def avoid(self, now_ns: int) -> None:
        """Avoid the replica for a while, twice as long each time until it answers in time."""
        self.late = 0
        self.avoid_until_ns = now_ns + min(AVOID_MAX_NS, AVOID_NS << self.avoided)
        self.avoided = min(self.avoided + 1, 8)

    def count_at(self, at_ns: int) -> int:
        """Return the own count at a time that is not long ago."""
        for when, before in self.changes:
            if when > at_ns:
                return before
        return self.outstanding


class Loads(Generic[Replica]):
    """The loads of one model's replicas."""

    def __init__(self) -> None:
        self._loads: dict[Replica, Load[Replica]] = {}

    def of(self, replica: Replica) -> Load[Replica]:
        found = self._loads.get(replica)
        if found is None:
            found = self._loads[replica] = Load()
        return found

    def begin(self, replica: Replica, miss: int, now_ns: int) -> Sent[Replica]:
        """Count a request; call it before the request is sent."""
        load = self.of(replica)
        sent = Sent(replica, miss, load.pending, now_ns, load.expected_ns(miss))
        load.changes.append((now_ns, load.outstanding))
        load.outstanding += 1
        load.pending += miss
        load.waiting[id(sent)] = sent
        return sent

    def first_token(self, sent: Sent[Replica], now_ns: int) -> None:
        """Note that the request's answer began; learn the replica's rate from it."""
        load = self._loads.get(sent.replica)
        if load is None or sent.started:
            return
        self._start(load, sent)
        took_ns = max(1, now_ns - sent.began_ns)
        work = sent.queue + sent.miss
        if work >= MEASURED_TOKENS:
            seen = max(RATE_MIN, work * SECOND_NS // took_ns)
            load.rate = max(RATE_MIN, load.rate + (seen - load.rate) // RATE_STEP)
        if took_ns <= _late_after_ns(sent):
            load.late = load.avoided = 0
            return
        load.late += 1
        if load.late >= LATE_IN_A_ROW:
            load.avoid(now_ns)

    def end(self, sent: Sent[Replica], now_ns: int) -> None:
        """Count a request no longer; call it however the request ended."""
        load = self._loads.get(sent.replica)
        if load is None:
            return
        self._start(load, sent)
        load.changes.append((now_ns, load.outstanding))
        load.outstanding -= 1

    def failed(self, replica: Replica, now_ns: int) -> None:
        """Note that the replica refused a connection or broke one."""
        self.of(replica).avoid(now_ns)

    def report(self, replica: Replica, running: int, full: bool, at_ns: int) -> None:
        """Take the replica's own report of the time `at_ns`. An older one than the last is ignored.

        What it shows beyond the own count of that time was sent by others.
        """
        load = self.of(replica)
        if at_ns < load.reported_ns:
            return
        load.elsewhere = max(0, running - load.count_at(at_ns))
        load.full = full
        load.reported_ns = at_ns

    def forget(self, replica: Replica) -> None:
        """Forget the replica, because it is gone."""
        self._loads.pop(replica, None)

    def _start(self, load: Load[Replica], sent: Sent[Replica]) -> None:
        if not sent.started:
            sent.started = True
            load.pending -= sent.miss
            del load.waiting[id(sent)]


def _late_after_ns(sent: Sent[Replica]) -> int:
    return max(LATE_FLOOR_NS, LATE_FACTOR * sent.expected_ns)
