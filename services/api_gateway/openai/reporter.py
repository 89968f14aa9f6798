"""Reports this gateway's OpenAI requests to the scheduler and the nodes.

The scheduler receives the number of outstanding requests at retired replicas: every second, when a
replica is retired, and when the last request at a retired replica ends; and the demand for models
that scale. A report reads the fold and
the counts in one step. The fold decides where requests go, so a report whose fold contains a
retirement counts every request that was sent before it. The scheduler's side is
services/scheduler/models/drains.py and demand.py.

Each node receives every second the list of its replicas that answered requests. Such a replica is
alive, even if it is too busy to answer its probe. Tests: tests/integration/test_model_drains.py and
test_busy_models.py.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.messages.outstanding import Answered, Outstanding, encode
from libs.common.model import JobId, NodeId, attempt_key
from libs.common.state.cluster import Cluster, Endpoint
from libs.common.transport.bus import Bus

if TYPE_CHECKING:
    from services.api_gateway.openai.queues import Queues

EVERY_S: Final = 1.0
# The least time between two reports.
PAUSE_S: Final = 0.02


class Reporter:
    """The reporter of one gateway. `cluster` returns the current fold."""

    def __init__(
        self, cluster: Callable[[], Cluster], queues: "Queues", bus: Bus, instance: str
    ) -> None:
        self.cluster = cluster
        self.requests, self.demand = queues.open, queues.demand
        self.bus = bus
        self.subject: Final = subjects.outstanding(instance)
        self._changed = asyncio.Event()
        self._answered: dict[JobId, None] = {}

    def wake(self) -> None:
        """Report soon, because a replica was retired, or a request waits for a first replica."""
        self._changed.set()

    def ended(self, endpoint: Endpoint) -> None:
        """Note the end of a request. The last one at a retired replica is reported at once."""
        if endpoint not in self.requests.counts and self._is_retired(endpoint.job_id):
            self._changed.set()

    def answered(self, endpoint: Endpoint) -> None:
        """Note that a replica has just answered without an error of its own."""
        self._answered[endpoint.job_id] = None

    async def run(self) -> None:
        """Report for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._report_outstanding())
            tasks.create_task(self._report_answered())

    async def _report_answered(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            for node_id, keys in self.take_answered().items():
                with contextlib.suppress(Unavailable):
                    await self.bus.publish(
                        subjects.ask_node(node_id, "answered"), encode(Answered(tuple(keys)))
                    )

    def take_answered(self) -> dict[NodeId, list[str]]:
        """Return, by node, the attempt keys of replicas that answered since the last call."""
        answered: dict[NodeId, list[str]] = {}
        for job_id in self._answered:
            if (job := self.cluster().jobs.get(job_id)) is not None:
                for node_id in job.members:
                    answered.setdefault(node_id, []).append(attempt_key(job_id, job.attempt))
        self._answered = {}
        return answered

    async def _report_outstanding(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), EVERY_S)
            self._changed.clear()
            await self.report()
            await asyncio.sleep(PAUSE_S)

    async def report(self) -> None:
        with contextlib.suppress(Unavailable):
            await self.bus.publish(self.subject, encode(self.outstanding()))

    def outstanding(self) -> Outstanding:
        """Return the number of outstanding requests at each retired replica, as of the current
        fold.
        """
        counts: dict[JobId, int] = {}
        for endpoint, count in self.requests.counts.items():
            if self._is_retired(endpoint.job_id):
                counts[endpoint.job_id] = counts.get(endpoint.job_id, 0) + count
        return Outstanding(self.cluster().seq, counts, self.demand())

    def _is_retired(self, job_id: JobId) -> bool:
        job = self.cluster().jobs.get(job_id)
        return job is not None and job.cancel is not None
