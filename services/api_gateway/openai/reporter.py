"""Reports this gateway's requests to the scheduler and the nodes.

The scheduler gets the number of outstanding requests at retired replicas: every second, when a
replica is retired, and when the last request at a retired replica ends. The fold decides where
requests go. Fold and counts are read in one step, so a report that holds a retirement holds every
request before it. The scheduler's side is services/scheduler/models/drains.py.

Each node is sent every second which of its replicas answered requests: such a replica is alive,
also when it is too busy for its probe. Held by tests/integration/test_model_drains.py and
test_busy_models.py.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.messages.outstanding import Answered, Outstanding, encode
from libs.common.model import JobId, NodeId, attempt_key
from libs.common.state.cluster import Cluster, Endpoint
from libs.common.transport.bus import Bus
from services.api_gateway.openai.balancer import Balancer

EVERY_S: Final = 1.0
# Between two reports, whatever happens.
PAUSE_S: Final = 0.02


class Reporter:
    """The reports of one gateway; `cluster` gives the fold of now."""

    def __init__(
        self, cluster: Callable[[], Cluster], balancer: Balancer, bus: Bus, instance: str
    ) -> None:
        self.cluster = cluster
        self.balancer = balancer
        self.bus = bus
        self.subject: Final = subjects.outstanding(instance)
        self._changed = asyncio.Event()
        self._answered: dict[JobId, None] = {}

    def wake(self) -> None:
        """A replica was retired."""
        self._changed.set()

    def ended(self, endpoint: Endpoint) -> None:
        """A request ended; the last one at a retired replica is reported at once."""
        if endpoint not in self.balancer.outstanding and self._is_retired(endpoint.job_id):
            self._changed.set()

    def answered(self, endpoint: Endpoint) -> None:
        """A replica has just said something, and no failure."""
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
        found: dict[NodeId, list[str]] = {}
        for job_id in self._answered:
            if (job := self.cluster().jobs.get(job_id)) is not None:
                for node_id in job.members:
                    found.setdefault(node_id, []).append(attempt_key(job_id, job.attempt))
        self._answered = {}
        return found

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
        """The requests under way at replicas that are to end, as of the fold of now."""
        counts: dict[JobId, int] = {}
        for endpoint, count in self.balancer.outstanding.items():
            if self._is_retired(endpoint.job_id):
                counts[endpoint.job_id] = counts.get(endpoint.job_id, 0) + count
        return Outstanding(self.cluster().seq, counts)

    def _is_retired(self, job_id: JobId) -> bool:
        job = self.cluster().jobs.get(job_id)
        return job is not None and job.cancel is not None
