"""Least attained service first: jobs that have used little go before jobs that have used much.

It needs no estimate. Use counts in doubling levels. Within a level the first submitted job goes
first, so that similar jobs do not take turns for ever.
"""

from typing import Final

from libs.common.model import WHOLE_GPU
from libs.common.state.cluster import Job
from libs.common.state.ordering import JobQueue

# The first level: up to ten minutes of one GPU.
LEVEL: Final = WHOLE_GPU * 600_000


def key(job: Job, queue: JobQueue, now_ns: int) -> tuple[int, int, int]:
    """Order by the level of what earlier attempts used, then by submission."""
    return (0, (job.order.attained // LEVEL).bit_length(), job.seq)
