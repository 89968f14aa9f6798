"""What a strategy may look at beside the node itself. Pure."""

from typing import NamedTuple

from services.scheduler.placement.fill import Fills


class WorkloadMix(NamedTuple):
    """`fills` is None as long as nobody knows what jobs usually ask for."""

    fills: Fills | None = None
