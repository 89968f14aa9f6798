"""First submitted, first placed; a requeued job keeps its place."""

from libs.common.cluster import Job


def key(job: Job) -> tuple[int, int]:
    """The stream sequence of the submission."""
    return (0, job.seq)
