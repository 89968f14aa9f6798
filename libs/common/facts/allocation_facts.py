"""Facts about how long allocations last: what their users ask for, what the scheduler says before
one is over.

Pure; part of the union in `facts.py`. When an allocation is over as long as nobody extends it,
JobPlaced says.
"""

from libs.common.facts.fact import Fact
from libs.common.model import JobId


class AllocationExtended(Fact, frozen=True, tag="allocation.extended"):
    """This attempt of an allocation lasts until `expires_ns` (of the wall clock), or longer when
    that was said already.
    """

    job_id: JobId
    attempt: int
    expires_ns: int
    user: str = ""


class AllocationWarned(Fact, frozen=True, tag="allocation.warned"):
    """The allocation is over soon: at `expires_ns`, unless it is extended."""

    job_id: JobId
    attempt: int
    expires_ns: int
