"""Refused attempts of a job: their number, the reason, the next attempt, the nodes to avoid.

Pure. JobRequeued carries the times. The fold keeps them (`folds/job_fold.py`), the scheduler obeys
them (`services/scheduler/decide/attempts.py`, `buckets.py`, `queue.py`). Times are of the writers'
wall clock. Tests: tests/unit/test_refusals.py.
"""

from collections.abc import Sequence

import msgspec

from libs.common.model import NodeId


class Refusals(msgspec.Struct, frozen=True):
    """The refusals of a job: `count` attempts in a row, the last one for `reason`.

    The job is placed nowhere until `not_before_ns`, and on none of the `excluded` nodes until the
    time that each has.
    """

    count: int = 0
    reason: str = ""
    not_before_ns: int = 0
    excluded: dict[NodeId, int] = {}

    def with_one_more(
        self, nodes: Sequence[NodeId], reason: str, not_before_ns: int, excluded_until_ns: int
    ) -> "Refusals":
        """Return the refusals after one more attempt that these nodes refused.

        Exclusions that end before the next attempt are dropped.
        """
        kept = {node: until for node, until in self.excluded.items() if until > not_before_ns}
        excluded = (
            {**kept, **dict.fromkeys(nodes, excluded_until_ns)} if excluded_until_ns else kept
        )
        count = self.count + bool(nodes)
        return Refusals(count, reason if nodes else self.reason, not_before_ns, excluded)

    def excluding(self, nodes: Sequence[NodeId], until_ns: int) -> "Refusals":
        """Return the refusals with these nodes excluded too, for another reason than a refusal."""
        excluded = {**self.excluded, **dict.fromkeys(nodes, until_ns)}
        return Refusals(self.count, self.reason, self.not_before_ns, excluded)

    def waiting_until(self, not_before_ns: int) -> "Refusals":
        """Return the refusals with a later time of the next placement, for another reason than a
        refusal.
        """
        return Refusals(self.count, self.reason, not_before_ns, self.excluded)

    def after_a_run(self) -> "Refusals":
        """Return the refusals after an attempt that started: the count begins at 0, and exclusions
        keep their times.
        """
        return Refusals(0, "", self.not_before_ns, self.excluded)

    def waits(self, now_ns: int) -> bool:
        """Return whether the job must still wait for its next attempt."""
        return self.not_before_ns > 0 and now_ns <= self.not_before_ns

    def avoided(self, now_ns: int) -> tuple[NodeId, ...]:
        """Return the nodes on which the job is not placed now."""
        return tuple(sorted(node for node, until_ns in self.excluded.items() if now_ns <= until_ns))

    def changes_ns(self, now_ns: int) -> int:
        """Return when the next wait or exclusion ends; 0 if none is left."""
        times = [
            at_ns
            for at_ns in (self.not_before_ns, *self.excluded.values())
            if at_ns >= max(1, now_ns)
        ]
        return min(times, default=0)
