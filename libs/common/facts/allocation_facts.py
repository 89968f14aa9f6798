"""Facts about the time of allocations: extensions by users, warnings by the scheduler.

Pure; part of the union in `facts/__init__.py`. JobPlaced holds the first end of an allocation.
"""

from libs.common.facts.fact import Fact
from libs.common.model import JobId


class AllocationExtended(Fact, frozen=True, tag="allocation.extended"):
    """A user extended an allocation.

    The attempt lasts until `expires_ns` (wall clock). An earlier fact with a later time stays in
    force.
    """

    job_id: JobId
    attempt: int
    expires_ns: int
    user: str = ""


class AllocationWarned(Fact, frozen=True, tag="allocation.warned"):
    """The scheduler warned that the allocation ends at `expires_ns` unless it is extended."""

    job_id: JobId
    attempt: int
    expires_ns: int
