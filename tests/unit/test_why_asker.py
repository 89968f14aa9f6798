"""An explanation names jobs and tenants only to an asker who may see them."""

import pytest

from libs.common.model import JobId, TenantId
from services.scheduler.explain import asker
from services.scheduler.explain.asker import ANOTHER
from services.scheduler.state.state import State
from tests.given import given, waiting

MINE, THEIRS = TenantId("mine"), TenantId("theirs")
J, K, L = JobId("j"), JobId("k"), JobId("l")


def asked_by(tenant: TenantId | None) -> State:
    """One job of the tenant `mine`, and two of the tenant `theirs`."""
    state = given(
        waiting("j", tenant=MINE, name="first"),
        waiting("k", tenant=THEIRS, name="merger"),
        waiting("l", tenant=THEIRS),
    )
    state.asker = tenant
    return state


@pytest.mark.parametrize(
    ("tenant", "named", "titled"),
    [
        (MINE, ["j", ANOTHER, ANOTHER], ["first (j)", ANOTHER, ANOTHER]),
        (None, ["j", "k", "l"], ["first (j)", "merger (k)", "l"]),
    ],
)
def test_jobs_of_other_tenants_have_no_name_for_the_asker(
    tenant: TenantId | None, named: list[str], titled: list[str]
) -> None:
    state = asked_by(tenant)
    assert [asker.job_named(state, job_id) for job_id in (J, K, L)] == named
    jobs = state.cluster.jobs
    assert [asker.titled(state, jobs[job_id]) for job_id in (J, K, L)] == titled


def test_jobs_of_other_tenants_are_counted_after_the_names() -> None:
    state = asked_by(MINE)
    assert asker.jobs_named(state, (K, J)) == f"j, {ANOTHER}"
    assert asker.jobs_named(state, (K, L, J)) == "j, 2 jobs of other tenants"
    assert asker.jobs_named(asked_by(None), (K, L, J)) == "k, l, j"


def test_another_tenant_has_no_name() -> None:
    state = asked_by(MINE)
    assert asker.tenant_named(state, MINE) == "tenant mine"
    assert asker.tenant_named(state, THEIRS) == "another tenant"
