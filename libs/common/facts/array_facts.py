"""Facts about job arrays. Pure; part of the union in `facts/__init__.py`."""

from libs.common.facts.fact import Fact
from libs.common.model import JobId, NodeId, TenantId


class ElementBegun(Fact, frozen=True, tag="array.element_begun"):
    """The next element of an array became a job, which waits in the array's place in the queue.

    `number` is the number of the element. Fields that users may change while a job waits have the
    array's values at the time of this decision. `count` is set for short arrays: the job is a batch
    of so many elements, and `number` is the first of them. Its time limit is that of all of them.
    """

    job_id: JobId
    array: JobId
    number: int
    tenant: TenantId
    priority: int = 50
    time_limit_s: int = 0
    count: int = 0


class ElementsEnded(Fact, frozen=True, tag="array.elements_ended"):
    """Elements of a batch ended, in order.

    `first` is the place of the first of them in its batch. `runs` are pairs of a number of elements
    and their result (`element_runs.py`). `begun` counts the elements of the batch that have begun.
    """

    job_id: JobId
    attempt: int
    node_id: NodeId
    first: int
    runs: tuple[tuple[int, int], ...]
    begun: int
