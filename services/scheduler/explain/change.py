"""A change that may start a job: in words, and as the facts by which people would make it.

Pure.
"""

from typing import Final, NamedTuple

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, JobSpec
from libs.common.state.cluster import Job

# No real id ends like this.
AGAIN: Final = JobId("again_")


class Change(NamedTuple):
    """A change that may start a job.

    `job_id` is the job that must start: the waiting one, or the one submitted in its place.
    `must_fit` is its spec if the change frees no device. If that spec does not fit now, the trial
    is skipped, unless some job may be preempted.
    """

    what: str
    facts: tuple[AnyFact, ...]
    job_id: JobId
    must_fit: JobSpec | None = None


def again(job: Job, what: str, spec: JobSpec) -> Change:
    """Return the change that cancels the job and submits it again with this spec."""
    gone = f.CancelRequested(job_id=job.job_id)
    come = f.JobSubmitted(job_id=AGAIN, spec=spec, tenant=job.tenant, user=job.user)
    return Change(what, (gone, come, f.JobAdmitted(job_id=AGAIN)), AGAIN, spec)


def changeable(job: Job) -> bool:
    """Return whether the job's user can usefully submit it again.

    A replica is submitted by its model. A job that is held or was refused has other obstacles; a
    new job would be tried on the refusing node again.
    """
    return (
        job.spec.serve is None
        and not job.refusals.count
        and not job.order.held
        and not job.order.waits
        and job.has_room
    )
