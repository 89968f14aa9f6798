"""What this gateway tells the scheduler of its requests: how many are outstanding at replicas that are to end.

Said every second, at once when a replica is retired, and when the last request at a retired replica ends. The fold decides where requests
go, and is read in the same moment as the counts: so a report that holds a retirement holds every request that came before it.
The scheduler's side is services/scheduler/drains.py. Held by tests/integration/test_model_drains.py.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from libs.common import subjects
from libs.common.cluster import Cluster, Endpoint
from libs.common.errors import Unavailable
from libs.common.messages.outstanding import Outstanding, encode
from libs.common.model import JobId
from libs.common.transport.bus import Bus
from services.api_gateway.openai.balancer import Balancer

EVERY_S: Final = 1.0
# Between two reports, whatever happens.
PAUSE_S: Final = 0.02


class Reporter:
    """The reports of one gateway; `cluster` gives the fold of now."""

    def __init__(self, cluster: Callable[[], Cluster], balancer: Balancer, bus: Bus, instance: str) -> None:
        self.cluster = cluster
        self.balancer = balancer
        self.bus = bus
        self.subject: Final = subjects.outstanding(instance)
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """A replica was retired."""
        self._changed.set()

    def ended(self, endpoint: Endpoint) -> None:
        """A request ended; the last one at a retired replica is reported at once."""
        if endpoint not in self.balancer.outstanding and self._is_retired(endpoint.job_id):
            self._changed.set()

    async def run(self) -> None:
        """Report for ever."""
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
        requests: dict[JobId, int] = {}
        for endpoint, count in self.balancer.outstanding.items():
            if self._is_retired(endpoint.job_id):
                requests[endpoint.job_id] = requests.get(endpoint.job_id, 0) + count
        return Outstanding(self.cluster().seq, requests)

    def _is_retired(self, job_id: JobId) -> bool:
        job = self.cluster().jobs.get(job_id)
        return job is not None and job.cancel is not None
