"""Quota rejects a job whose tenant has more dependencies than it may have."""

from libs.common import facts as f
from libs.common.model import JobId, TenantId
from libs.common.state.cluster import Cluster, tenant_of
from libs.common.state.ordering import AFTER_OF_TENANT_MAX
from services.quota.decide import decide
from services.quota.state import State
from tests.given import spec, tell

J, K = JobId("j"), JobId("k")
AFTER_J = spec(after=(("afterany", J),))


def with_dependencies(others: int) -> State:
    """A submitted job after one other, of a tenant with so many other dependencies."""
    cluster = Cluster()
    tell(cluster, f.JobSubmitted(job_id=J, spec=spec(), tenant=TenantId("t")))
    tell(cluster, f.JobAdmitted(job_id=J))
    tenant_of(cluster, TenantId("t")).dependencies = others
    tell(cluster, f.JobSubmitted(job_id=K, spec=AFTER_J, tenant=TenantId("t")))
    return State(cluster)


def test_a_tenant_may_have_as_many_dependencies_as_the_bound() -> None:
    assert decide(with_dependencies(AFTER_OF_TENANT_MAX - 1), 0) == (f.JobAdmitted(job_id=K),)


def test_a_job_with_one_dependency_too_many_is_rejected_with_the_numbers() -> None:
    (said,) = decide(with_dependencies(AFTER_OF_TENANT_MAX), 0)
    assert isinstance(said, f.JobRejected)
    assert said.reason == (
        f"the jobs of tenant t have {AFTER_OF_TENANT_MAX + 1} dependencies, and may have "
        f"{AFTER_OF_TENANT_MAX}: wait for some of these jobs to begin"
    )
