"""Counts the work of each replica, and notices replicas that are slow or silent.

The work is the outstanding requests, and the input tokens that are sent and not processed yet.
A request is counted before it is sent. The own count is the one source: a replica's report only
adds what other gateways sent to it. Pure. Tests: tests/unit/test_serving_loads.py, and
tests/unit/test_serving_routing.py with one test per rule of docs/serving.md.
"""

import heapq
from collections import deque
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

SECOND_NS: Final = 1_000_000_000
# Input tokens per second of a replica that was not measured yet.
FIRST_RATE: Final = 16_000
RATE_MIN: Final = 50
# A faster first token did not need the engine's work: for example, its cache held the prompt.
RATE_MAX: Final = 500_000
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
# A stream without a first token counts as processed when it is late, after this time at most: one
# request that never begins must not close its replica to all others.
PROCESSED_MAX_NS: Final = 30 * SECOND_NS
# A report that is older than this says nothing about now.
REPORT_NS: Final = 10 * SECOND_NS
# Changes of the own count that are kept, to compare a report with the count at its time.
CHANGES_MAX: Final = 1_024

Replica = TypeVar("Replica", bound=Hashable)


class Sent(Generic[Replica]):
    """A request that was sent to a replica.

    `miss` are the input tokens that its cache lacks, `pending` those that still count as
    unprocessed. The first token of an answer that is not streamed cannot be seen.
    """

    __slots__ = (
        "began_ns",
        "expected_ns",
        "is_streamed",
        "miss",
        "pending",
        "queue",
        "replica",
        "started",
    )

    def __init__(
        self,
        replica: Replica,
        miss: int,
        queue: int,
        began_ns: int,
        expected_ns: int,
        is_streamed: bool = True,
    ) -> None:
        self.replica = replica
        self.miss = miss
        self.pending = miss
        self.queue = queue
        self.began_ns = began_ns
        self.expected_ns = expected_ns
        self.is_streamed = is_streamed
        self.started = False

    @property
    def processed_ns(self) -> int:
        """Return when the input counts as processed if no first token was seen."""
        if not self.is_streamed:
            return self.began_ns + self.expected_ns
        return self.began_ns + min(PROCESSED_MAX_NS, _late_after_ns(self))


class Load(Generic[Replica]):
    """The load of one replica."""

    def __init__(self) -> None:
        self.outstanding = 0
        self.pending = 0
        self.rate = FIRST_RATE
        self.late = 0
        self.avoided = 0
        self.avoid_since_ns = -1
        self.avoid_until_ns = 0
        self.elsewhere = 0
        self.full = False
        self.reported_ns = -REPORT_NS
        self.waiting: dict[int, Sent[Replica]] = {}
        self.changes: deque[tuple[int, int]] = deque(maxlen=CHANGES_MAX)

    def running(self, now_ns: int) -> int:
        """Return how many requests the replica has.

        They are the own ones, and those that its last report showed beyond them.
        """
        return self.outstanding + (self.elsewhere if self._is_fresh(now_ns) else 0)

    def expected_ns(self, miss: int) -> int:
        """Return how long a request waits for its first token if it is sent now."""
        return (self.pending + miss) * SECOND_NS // self.rate

    def is_vetoed(self, now_ns: int) -> bool:
        """Return whether the replica's own last report says that it is full."""
        return self.full and self._is_fresh(now_ns)

    def is_avoided(self, now_ns: int) -> bool:
        """Return whether the replica failed or was late recently, or is silent now."""
        return now_ns < self.avoid_until_ns or self._is_silent(now_ns)

    def _is_silent(self, now_ns: int) -> bool:
        if len(self.waiting) < LATE_IN_A_ROW:
            return False
        oldest = next(iter(self.waiting.values()))
        return now_ns - oldest.began_ns > _late_after_ns(oldest)

    def _is_fresh(self, now_ns: int) -> bool:
        return now_ns - self.reported_ns < REPORT_NS

    def avoid(self, began_ns: int, now_ns: int, first_ns: int = AVOID_NS) -> None:
        """Avoid the replica for a while, twice as long each time until it answers in time.

        `began_ns` is when the observed request was sent. If that was before the replica was avoided
        last, or it is avoided now, the observation is part of the same failure.
        """
        self.late = 0
        if began_ns <= self.avoid_since_ns or now_ns < self.avoid_until_ns:
            return
        self.avoid_since_ns = now_ns
        self.avoid_until_ns = now_ns + min(AVOID_MAX_NS, first_ns << self.avoided)
        self.avoided = min(self.avoided + 1, 8)

    def count_at(self, at_ns: int) -> int:
        """Return the own count at a time that is not long ago."""
        for when, before in self.changes:
            if when > at_ns:
                return before
        return self.outstanding


class Loads(Generic[Replica]):
    """The loads of one model's replicas. `avoid_ns` is how long one is avoided the first time."""

    def __init__(self, avoid_ns: int = AVOID_NS) -> None:
        self.avoid_ns = avoid_ns
        self._loads: dict[Replica, Load[Replica]] = {}
        self._unprocessed: list[tuple[int, int, Sent[Replica]]] = []
        self._number = 0

    def of(self, replica: Replica) -> Load[Replica]:
        found = self._loads.get(replica)
        if found is None:
            found = self._loads[replica] = Load()
        return found

    def known(self) -> list[Replica]:
        """Return all replicas that have a load."""
        return list(self._loads)

    def begin(
        self, replica: Replica, miss: int, now_ns: int, is_streamed: bool = True
    ) -> Sent[Replica]:
        """Count a request; call it before the request is sent."""
        load = self.of(replica)
        sent = Sent(
            replica=replica,
            miss=miss,
            queue=load.pending,
            began_ns=now_ns,
            expected_ns=load.expected_ns(miss),
            is_streamed=is_streamed,
        )
        load.changes.append((now_ns, load.outstanding))
        load.outstanding += 1
        load.pending += miss
        load.waiting[id(sent)] = sent
        self._number += 1
        heapq.heappush(self._unprocessed, (sent.processed_ns, self._number, sent))
        return sent

    def settle(self, now_ns: int) -> None:
        """Count inputs as processed whose time is over.

        A stream stays among those without a first token, so that its replica can be silent.
        """
        while self._unprocessed and self._unprocessed[0][0] <= now_ns:
            _, _, sent = heapq.heappop(self._unprocessed)
            load = self._loads.get(sent.replica)
            if load is None or load.waiting.get(id(sent)) is not sent:
                continue
            if sent.is_streamed:
                load.pending -= sent.pending
                sent.pending = 0
            else:
                self._start(load, sent)

    def next_ns(self) -> int | None:
        """Return when `settle` may change something; None if never."""
        return self._unprocessed[0][0] if self._unprocessed else None

    def first_token(self, sent: Sent[Replica], now_ns: int) -> None:
        """Note that the request's answer began; learn the replica's rate from it."""
        load = self._loads.get(sent.replica)
        if load is None or sent.started:
            return
        self._start(load, sent)
        took_ns = max(1, now_ns - sent.began_ns)
        work = sent.queue + sent.miss
        if work >= MEASURED_TOKENS:
            seen = min(RATE_MAX, max(RATE_MIN, work * SECOND_NS // took_ns))
            load.rate = max(RATE_MIN, load.rate + (seen - load.rate) // RATE_STEP)
        if took_ns <= _late_after_ns(sent):
            load.late = load.avoided = 0
            return
        load.late += 1
        if load.late >= LATE_IN_A_ROW:
            load.avoid(sent.began_ns, now_ns, self.avoid_ns)

    def end(self, sent: Sent[Replica], now_ns: int) -> None:
        """Count a request no longer; call it however the request ended."""
        load = self._loads.get(sent.replica)
        if load is None:
            return
        self._start(load, sent)
        load.changes.append((now_ns, load.outstanding))
        load.outstanding -= 1

    def failed(self, sent: Sent[Replica], now_ns: int) -> None:
        """Note that the replica refused the request's connection or broke it."""
        self.of(sent.replica).avoid(sent.began_ns, now_ns, self.avoid_ns)

    def answered(self, sent: Sent[Replica]) -> None:
        """Note that the replica answered the request completely, and without an error."""
        self.of(sent.replica).avoided = 0

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
            load.pending -= sent.pending
            sent.pending = 0
            del load.waiting[id(sent)]


def _late_after_ns(sent: Sent[Replica]) -> int:
    return max(LATE_FLOOR_NS, LATE_FACTOR * sent.expected_ns)
