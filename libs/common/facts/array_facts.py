"""The fact about job arrays. Pure; part of the union in `facts/__init__.py`."""

from libs.common.facts.fact import Fact
from libs.common.model import JobId, TenantId


class ElementBegun(Fact, frozen=True, tag="array.element_begun"):
    """The next element of an array became a job, which waits in the array's place in the queue.

    `number` is the number of the element. Fields that users may change while a job waits have the
    array's values at the time of this decision.
    """

    job_id: JobId
    array: JobId
    number: int
    tenant: TenantId
    priority: int = 50
    time_limit_s: int = 0
