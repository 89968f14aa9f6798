"""Names of jobs and tenants in an explanation, as far as the asker may see them.

Pure. Every such name is written here, so that no name of another tenant can slip into a sentence.
What other tenants hold still counts in the explanation. Tests:
tests/attack/test_names_of_others.py.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.model import JobId, TenantId
from libs.common.state.cluster import Job
from services.scheduler.state.state import State

ANOTHER: Final = "a job of another tenant"


class WhyAsk(msgspec.Struct, frozen=True):
    """A question about a job or a model.

    `asker` is the only tenant that the answer may name; None means all. `at` is a past sequence; 0
    is now.
    """

    job_id: JobId = JobId("")
    at: int = 0
    model: str = ""
    asker: TenantId | None = TenantId("")


def sees(state: State, tenant: TenantId) -> bool:
    """Return whether the asker may read what belongs to this tenant."""
    return state.asker is None or state.asker == tenant


def job_named(state: State, job_id: JobId) -> str:
    """Return the job's id; of a job that the asker may not see, only that there is one."""
    job = state.cluster.jobs.get(job_id)
    return job_id if job is not None and sees(state, job.tenant) else ANOTHER


def titled(state: State, job: Job) -> str:
    """Return the job's name and id, as far as the asker may see them."""
    if not sees(state, job.tenant):
        return ANOTHER
    return f"{job.spec.name} ({job.job_id})" if job.spec.name else job.job_id


def jobs_named(state: State, job_ids: Iterable[JobId]) -> str:
    """Return the jobs' ids; those that the asker may not see are counted."""
    names = [job_named(state, job_id) for job_id in job_ids]
    hidden = names.count(ANOTHER)
    others = [] if not hidden else [ANOTHER] if hidden == 1 else [f"{hidden} jobs of other tenants"]
    return ", ".join([*(name for name in names if name != ANOTHER), *others])


def tenant_named(state: State, tenant: TenantId) -> str:
    return f"tenant {tenant}" if sees(state, tenant) else "another tenant"
