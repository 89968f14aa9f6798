"""The higher priority first; among equals, first submitted, first placed."""

from libs.common.cluster import Job


def key(job: Job) -> tuple[int, int]:
    """Priority, then the stream sequence of the submission."""
    return (-job.spec.priority, job.seq)
