"""Least attained service first: needs no estimate.

Who has used little so far goes before who has used much, in doubling levels.

Within a level the first submitted goes first, so that jobs that are alike do not take turns for
ever.
"""

from typing import Final

from libs.common.model import WHOLE_GPU
from libs.common.state.cluster import Job
from libs.common.state.ordering import JobQueue

# The first level: up to ten minutes of one GPU.
LEVEL: Final = WHOLE_GPU * 600_000


def key(job: Job, queue: JobQueue, now_ns: int) -> tuple[int, int, int]:
    """The level of what its earlier attempts used, then order of submission."""
    return (0, (job.order.attained // LEVEL).bit_length(), job.seq)
