"""The times at which the schedulers of a simulated world placed jobs.

A commit holds the time at which it was encoded. Its decisions may be much older: they wait until
the writer knows whether its last commit was stored.
"""

import asyncio
from collections.abc import Sequence

from libs.common.facts import AnyFact, JobPlaced
from libs.common.transport.writer import Writer


class DecisionTimes:
    """The wall time of each placement, by the scheduler's epoch, the job and its attempt."""

    def __init__(self) -> None:
        self._placed_ns: dict[tuple[int, str, int], int] = {}

    def note(self, writer: Writer) -> None:
        """Note the times of all placements that a scheduler gives to its writer."""
        put = writer.put

        def noted(facts: Sequence[AnyFact], share: str = "") -> asyncio.Future[int]:
            now_ns = writer.now_ns()
            for fact in facts:
                if isinstance(fact, JobPlaced):
                    self._placed_ns[writer.epoch, fact.job_id, fact.attempt] = now_ns
            return put(facts, share)

        writer.put = noted  # type: ignore[method-assign]

    def placed_ns(self, epoch: int, placed: JobPlaced) -> int:
        """Return when a scheduler placed a job. Raises KeyError if it did not."""
        return self._placed_ns[epoch, placed.job_id, placed.attempt]
