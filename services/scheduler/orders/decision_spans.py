"""Records the spans of the scheduler: of its decisions, and of orders on their way.

The spans themselves are made in `libs/common/spans/job_spans.py`. Tests:
tests/integration/test_spans.py.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from libs.common import subjects
from libs.common.facts import Commit
from libs.common.messages import AnyOrder, StartOrder
from libs.common.model import JobId, NodeId
from libs.common.spans import job_spans, recording
from libs.common.spans.recording import Recorder
from libs.common.state.cluster import Cluster

OFF: Final = nullcontext()


def recorded(state: Cluster, commit: Commit, leads: bool) -> AbstractContextManager[None]:
    """Record the spans that a commit of this scheduler ends; within the block it is folded."""
    recorder = recording.active
    if recorder is None or not leads or commit.writer != subjects.SCHEDULER:
        return OFF
    return _recorded(state, commit, recorder)


@contextmanager
def _recorded(state: Cluster, commit: Commit, recorder: Recorder) -> Iterator[None]:
    recorder.record_all(job_spans.requeued(state.jobs, commit))
    yield
    recorder.record_all(job_spans.of_commit(state.jobs, commit, time.time_ns()))


class OrderSpans:
    """The starts that are not sent yet, with the time at which the log acknowledged them."""

    def __init__(self) -> None:
        self.acked_ns: dict[tuple[NodeId, JobId], int] = {}

    def queued(self, node_id: NodeId, order: AnyOrder, now_ns: int) -> None:
        """Note a start that waits for its sending."""
        if recording.active is not None and isinstance(order, StartOrder) and order.trace:
            self.acked_ns[node_id, order.job_id] = now_ns

    def sent(self, node_id: NodeId, orders: Sequence[AnyOrder], now_ns: int) -> None:
        """Record the spans of orders that were sent."""
        if not self.acked_ns or recording.active is None:
            return
        for order in orders:
            if isinstance(order, StartOrder):
                acked_ns = self.acked_ns.pop((node_id, order.job_id), now_ns)
                span = job_spans.ordered(order, node_id, acked_ns, now_ns)
                recording.active.record_all([] if span is None else [span])
