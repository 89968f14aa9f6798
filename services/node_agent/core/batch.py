"""The facts about the elements of a batch: which began and how they ended. Pure.

While a batch runs, its results are recorded from time to time; the rest goes with the end of the
attempt. Tests: tests/unit/test_agent_batches.py.
"""

from typing import Final

from libs.common import element_runs
from libs.common import facts as f
from libs.common.model import NodeId
from services.node_agent.core import state as s
from services.node_agent.core.state import MS, Attempt

# At most one fact about the elements of an attempt in this time, except for the first and the last.
ELEMENTS_EVERY_NS: Final = 5_000 * MS


def elements_due_ns(attempt: Attempt) -> int | None:
    """Return when the newest results must be recorded; None for never."""
    seen = attempt.elements
    if seen is None:
        return None
    more = len(seen.results) > attempt.elements_recorded
    if attempt.phase == s.EXITED:
        return 0 if more or seen.begun > attempt.elements_begun else None
    return attempt.elements_due_ns if more and attempt.queued >= s.STARTED_LEVEL else None


def element_facts(attempt: Attempt, node_id: NodeId, now_ns: int) -> list[f.NodeFact]:
    """Return the newest results, if they are due."""
    due_ns, seen = elements_due_ns(attempt), attempt.elements
    if due_ns is None or seen is None or now_ns < due_ns:
        return []
    recorded = attempt.elements_recorded
    attempt.elements_recorded, attempt.elements_begun = len(seen.results), seen.begun
    attempt.elements_due_ns = now_ns + ELEMENTS_EVERY_NS
    return [
        f.ElementsEnded(
            job_id=attempt.ref.job_id,
            attempt=attempt.ref.attempt,
            node_id=node_id,
            first=seen.first + recorded,
            runs=element_runs.of_results(seen.results[recorded:]),
            begun=seen.begun,
        )
    ]
