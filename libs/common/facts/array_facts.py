"""The fact about job arrays. Pure; part of the union in `facts.py`."""

from libs.common.facts.fact import Fact
from libs.common.model import JobId, TenantId


class ElementBegun(Fact, frozen=True, tag="array.element_begun"):
    """The array's next element is a job of its own from now on, and waits in the place of its
    array.

    `number` is its number; what users may change of a job that waits is as it was when this was
    decided.
    """

    job_id: JobId
    array: JobId
    number: int
    tenant: TenantId
    priority: int = 50
    time_limit_s: int = 0
