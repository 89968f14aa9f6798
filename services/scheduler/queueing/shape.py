"""The shape of a waiting job: what makes two jobs equal for placement and for limits.

Pure.
"""

from typing import Final, NamedTuple

import msgspec

from libs.common import element_runs
from libs.common.model import WHOLE_GPU, JobId, JobSpec, NodeId, TenantId
from libs.common.state.cluster import Job
from services.scheduler.placement.lending import can_borrow
from services.scheduler.placement.resource_request import ResourceRequest, request_of
from services.scheduler.policies import OrderKey
from services.scheduler.queueing.parking import Need


class Shape(msgspec.Struct, frozen=True, order=True, cache_hash=True):
    """The key by which two jobs are equal for placement.

    `lasts` is the bit length of the time limit in seconds, because a short job may be backfilled
    where a long one may not (`backfill.py`); a short array has the limit of its smallest batch.
    `reserved` is the named reservation and the user, or two empty strings. `held_s` is the duration
    of an allocation. `borrows`: it may run on lent nodes, where another job may not (`lending.py`).
    """

    tenant: TenantId
    request: ResourceRequest
    lasts: int = 0
    reserved: tuple[str, str] = ("", "")
    held_s: int = 0
    borrows: bool = False

    @property
    def owner(self) -> "Owner":
        return Owner(self.tenant, self.reserved)

    def need(self, card_bytes: int) -> Need:
        """Return what limits compare. `card_bytes` is the memory of the largest card."""
        request = self.request
        hours = hours_asked(self) if self.held_s else 0
        return Need(request.least_share_on(card_bytes), request.nodes * request.pools, hours)

    def on(self, nodes: int) -> "Shape":
        """Return the same shape with this number of nodes."""
        same = nodes == self.request.nodes
        return (
            self
            if same
            else msgspec.structs.replace(
                self, request=msgspec.structs.replace(self.request, nodes=nodes)
            )
        )


class Owner(NamedTuple):
    """The part of a shape that decides which limits apply to it: its tenant and reservation."""

    tenant: TenantId
    reserved: tuple[str, str]

    @property
    def by_reservation(self) -> "Owner":
        """This owner, or NO_OWNER if its jobs name no reservation: all such jobs wait for the same
        nodes.
        """
        return self if self.reserved[0] else NO_OWNER


NO_OWNER: Final = Owner(TenantId(""), ("", ""))


def hours_asked(shape: Shape) -> int:
    """Return the most that an allocation can hold, in hundredths of a GPU times milliseconds."""
    request = shape.request
    share = request.total_share or request.nodes * request.gpus * WHOLE_GPU
    return share * shape.held_s * 1_000


class LaneId(NamedTuple):
    """The name of a queue, and the tenant where the policy of that queue compares tenants."""

    queue: str
    tenant: str


class Waiting(NamedTuple):
    """One entry of a lane.

    An entry is live while `Queue.waiting` holds this very object for its job, not merely an equal
    one.
    """

    key: OrderKey
    job_id: JobId
    shape: Shape
    lane: LaneId


def shortest_limit_s(job: Job) -> int:
    """Return the time limit in seconds with which the job may start; 0: none.

    A short array may start a batch of one element.
    """
    spec = job.spec
    if job.elements is None or spec.array is None or not spec.array.short:
        return spec.time_limit_s
    return element_runs.batch_limit_s(spec.time_limit_s, 1, spec.grace_s)


def shortest_spec(job: Job) -> JobSpec:
    """Return the job's spec, with the time limit of `shortest_limit_s`."""
    limit_s = shortest_limit_s(job)
    return (
        job.spec
        if limit_s == job.spec.time_limit_s
        else msgspec.structs.replace(job.spec, time_limit_s=limit_s)
    )


def shape_of(job: Job, excluded: tuple[NodeId, ...] = ()) -> Shape:
    """Return the job's shape. `excluded` are the nodes that refused the job lately."""
    reserved = (job.spec.reservation, job.user) if job.spec.reservation else ("", "")
    held_s = job.spec.allocation.expires_s if job.spec.allocation is not None else 0
    return Shape(
        tenant=job.tenant,
        request=request_of(job.spec, excluded),
        lasts=shortest_limit_s(job).bit_length(),
        reserved=reserved,
        held_s=held_s,
        borrows=can_borrow(job.spec),
    )
