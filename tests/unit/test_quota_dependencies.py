"""Quota rejects a job whose tenant has more dependencies than it may have."""

from collections.abc import Callable

import pytest

from libs.common import facts as f
from libs.common.model import JobId, TenantId
from libs.common.state.cluster import Cluster, tenant_of
from libs.common.state.ordering import AFTER_OF_TENANT_MAX
from services.quota import decide as decisions
from services.quota.decide import decide
from services.quota.state import State
from tests.given import spec, tell
from tests.history import closed, job, submitted
from tests.unit.test_quota import World, names

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


@pytest.fixture
def three_submitted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., World]:
    """Return a function that submits the jobs x, y and z, which wait for the same three others.

    `bound` is how many dependencies the tenant may have; `ended` of the others end before quota
    decides.
    """

    def submit(bound: int, ended: int = 0) -> World:
        monkeypatch.setattr(decisions, "AFTER_OF_TENANT_MAX", bound)
        world, before = World(), ("a", "b", "c")
        world.say(*map(submitted, before))
        world.record()
        for name in before:
            world.say(f.JobQueued(job_id=job(name)))
        after = [["afterany", name] for name in before]
        world.say(*(submitted(name, after=after) for name in "xyz"))
        world.say(*(closed(name, "cancelled") for name in before[:ended]))
        return world

    return submit


@pytest.mark.parametrize(("bound", "admitted"), [(5, "x"), (6, "xy"), (8, "xy"), (9, "xyz")])
def test_at_the_bound_the_first_submissions_are_admitted(
    three_submitted: Callable[..., World], bound: int, admitted: str
) -> None:
    said = three_submitted(bound).record()
    assert [fact.job_id for fact in said if isinstance(fact, f.JobAdmitted)] == list(admitted)
    assert len(said) == 3


def test_dependencies_that_ended_before_the_decision_do_not_count(
    three_submitted: Callable[..., World],
) -> None:
    said = three_submitted(bound=3, ended=2).record()
    assert names(said) == [("JobAdmitted", "x"), ("JobAdmitted", "y"), ("JobAdmitted", "z")]


def test_a_rejection_does_not_count_the_dependencies_of_later_submissions(
    three_submitted: Callable[..., World],
) -> None:
    said = three_submitted(bound=2).record()[0]
    assert isinstance(said, f.JobRejected) and "have 3 dependencies" in said.reason


def test_a_state_from_a_snapshot_counts_the_dependencies_of_undecided_jobs(
    three_submitted: Callable[..., World],
) -> None:
    world = three_submitted(bound=5, ended=1)
    state, again = world.state, State(world.state.cluster)
    assert again.dependencies == state.dependencies == {"x": 2, "y": 2, "z": 2}
    assert again.dependencies_of == state.dependencies_of
    world.record()
    assert not state.dependencies and not any(state.dependencies_of.values())
