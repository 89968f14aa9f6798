"""Word the state of a job whose devices are idle. Pure. Tests: tests/unit/test_idle_jobs.py."""

from typing import Final

from libs.common import reasons
from libs.common.quantities import counted
from libs.common.state.cluster import Job
from libs.common.state.job import idle_since_ns
from libs.common.state.ordering import SECOND_NS

SECONDS: Final = 60


def idle_words(job: Job, wall_ns: int) -> str:
    """Return a clause about a running job whose GPUs are all idle, and what follows."""
    since_ns = idle_since_ns(job)
    if not since_ns:
        return ""
    text = f"; all its GPUs have been idle for {_minutes(wall_ns - since_ns)}"
    if job.idle is None or not job.idle.ends_ns:
        return text
    return f"{text}, and {job.idle.action} follows in {_minutes(job.idle.ends_ns - wall_ns)}"


def ended_because(job: Job) -> str:
    """Return the reason of an ended job, in words where the recorded one needs some."""
    if job.reason == reasons.IDLE_GPUS:
        return f"{job.reason}: all its GPUs were idle for longer than its tenant's policy allows"
    return job.reason


def _minutes(span_ns: int) -> str:
    return counted(max(0, span_ns) // SECOND_NS // SECONDS, "minute")
