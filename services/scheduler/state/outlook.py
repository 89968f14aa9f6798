"""Forecasts and preemption offers for recent requests.

Pure, and derived: an answer depends on the state alone, not on earlier questions. The answers for
the requests that were used least recently are dropped.
"""

from collections.abc import Callable
from typing import Final, TypeVar

from libs.common.model import JobId
from libs.common.state.cluster import Cluster, Job
from services.scheduler.placement.capacity import Capacity
from services.scheduler.placement.forecast import Forecast
from services.scheduler.placement.resource_request import ResourceRequest
from services.scheduler.preemption.offers import Offers
from services.scheduler.preemption.preemptible import Need

KEPT_MAX: Final = 32

Key = TypeVar("Key")
Kept = TypeVar("Kept", Forecast, Offers)


class Outlook:
    """The kept forecasts and offers."""

    def __init__(self, cluster: Cluster, capacity: Capacity) -> None:
        self.cluster: Final = cluster
        self.capacity: Final = capacity
        self.forecasts: Final[dict[tuple[ResourceRequest, str, tuple[JobId, ...]], Forecast]] = {}
        self.offered: Final[dict[tuple[ResourceRequest, str, Need], Offers]] = {}

    def forecast(
        self,
        request: ResourceRequest,
        sharing_domain: str,
        wall_ns: int,
        called_back: tuple[JobId, ...] = (),
    ) -> Forecast:
        """Return when nodes will serve this request, if these jobs on lent nodes end at once. The
        sharing domain matters only to parts of devices.
        """
        domain = "" if request.whole or not request.gpus else sharing_domain
        key = (request, domain, called_back)
        found = self._cached(self.forecasts, key, lambda: Forecast(*key))
        found.bring_up(self.cluster, self.capacity, wall_ns)
        return found

    def offers(
        self,
        request: ResourceRequest,
        sharing_domain: str,
        need: Need,
        may_end: Callable[[Job], bool],
    ) -> Offers:
        """Return what nodes could offer this request if the jobs ended that may make
        room for it.
        """
        found = self._cached(
            self.offered,
            (request, sharing_domain, need),
            lambda: Offers(request, sharing_domain, may_end),
        )
        found.bring_up(self.capacity, self.cluster)
        return found

    def forget(self) -> None:
        """Drop everything, because the sharing of devices was reconfigured."""
        self.forecasts.clear()
        self.offered.clear()

    def _cached(self, kept: dict[Key, Kept], key: Key, make: Callable[[], Kept]) -> Kept:
        found = kept[key] = kept.pop(key) if key in kept else make()
        if len(kept) > KEPT_MAX:
            del kept[next(iter(kept))]
        return found
