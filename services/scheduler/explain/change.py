"""One change that may start a job: in words, and as the facts by which it would be made. Pure."""

from typing import Final, NamedTuple

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, JobSpec
from libs.common.state.cluster import Job

# No real id ends like this.
AGAIN: Final = JobId("again_")


class Change(NamedTuple):
    """`job_id` is what has to start: the job, or what was submitted in its place.

    `must_fit` is what that asks for, where the change frees no device: then what it needs is free
    already, or nothing has to be tried (but where some job may be preempted).
    """

    what: str
    facts: tuple[AnyFact, ...]
    job_id: JobId
    must_fit: JobSpec | None = None


def again(job: Job, what: str, spec: JobSpec) -> Change:
    """Cancelled, and submitted again as this."""
    gone = f.CancelRequested(job_id=job.job_id)
    come = f.JobSubmitted(job_id=AGAIN, spec=spec, tenant=job.tenant, user=job.user)
    return Change(what, (gone, come, f.JobAdmitted(job_id=AGAIN)), AGAIN, spec)


def changeable(job: Job) -> bool:
    """Whether its user can submit it again: not a replica, which its model makes; and one that is
    kept back or was refused has other worries.

    A new job would be tried again on the node that refused it.
    """
    return (
        job.spec.serve is None
        and not job.refusals.count
        and not job.order.held
        and not job.order.waits
        and job.has_room
    )
