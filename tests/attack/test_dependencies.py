"""One tenant submits held jobs, and many jobs after all of them.

Folding that log stays linear, also at replay, and the tenant is bounded.
"""

from collections.abc import Iterable, Iterator

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact
from libs.common.folds import order_fold
from libs.common.model import JobId, TenantId
from libs.common.state.cluster import Cluster
from libs.common.state.ordering import AFTER_MAX, AFTER_OF_TENANT_MAX
from libs.common.transport import snapshot
from services.api_gateway.intents import order_intents
from services.api_gateway.problems import Problem
from services.quota.decide import decide
from services.quota.state import State
from tests.given import spec, tell, waiting

TENANT = TenantId("default")
# Comparisons, hashes and lines of the fold for each job and each dependency.
STEPS_EACH = 10


class Counted(str):
    """An id that counts how often it is compared or hashed."""

    __slots__ = ()
    steps = 0

    def __hash__(self) -> int:
        Counted.steps += 1
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        Counted.steps += 1
        return str.__eq__(self, other)

    def __lt__(self, other: str) -> bool:
        Counted.steps += 1
        return str.__lt__(self, other)


def held(count: int, kind: type[str] = str) -> list[JobId]:
    return [JobId(kind(f"jheld{n:05}")) for n in range(count)]


def after_all(before: list[JobId], count: int, kind: type[str] = str) -> Iterator[AnyFact]:
    after = tuple(("afterany", job_id) for job_id in before)
    for n in range(count):
        yield f.JobSubmitted(
            job_id=JobId(kind(f"jafter{n:05}")), spec=spec(after=after), tenant=TENANT
        )


def say(state: State, facts: Iterable[AnyFact]) -> None:
    for fact in facts:
        state.apply_entry(
            state.seq + 1,
            subject := subjects.gateway("a"),
            f.Commit(
                version=f.VERSION,
                min_reader=f.VERSION,
                writer=subject,
                number=state.seq + 1,
                epoch=0,
                at_ns=0,
                seen=state.seq,
                facts=(fact,),
            ),
        )


def steps(before: int, after: int) -> int:
    """Return the steps of the fold when all are submitted, half of the dependents are rejected, and
    the jobs that they wait for end.
    """
    cluster, first = Cluster(), held(before, Counted)
    tell(cluster, f.TermBegan(instance="a"), seq=1)
    for job_id in first:
        for fact in waiting(job_id, hold=True):
            tell(cluster, fact)
    Counted.steps = 0
    submitted = list(after_all(first, after, Counted))
    for fact in submitted:
        tell(cluster, fact)
    for fact in submitted[::2]:
        assert isinstance(fact, f.JobSubmitted)
        tell(cluster, f.JobRejected(job_id=fact.job_id, reason="x"))
    for job_id in first:
        tell(cluster, f.JobClosed(job_id=job_id, attempt=1, outcome="cancelled"))
    assert cluster.dependents == {} and cluster.tenants[TENANT].dependencies == 0
    return Counted.steps


@pytest.mark.parametrize(
    ("before", "after"),
    [(16, 64), (64, 256), (128, 512), (1, 4_096), (AFTER_MAX, AFTER_OF_TENANT_MAX // AFTER_MAX)],
)
def test_the_fold_of_dependencies_is_linear_in_jobs_and_dependencies(
    before: int, after: int
) -> None:
    assert steps(before, after) < STEPS_EACH * (before + after + before * after)


def test_a_tenant_over_its_dependencies_is_refused_at_the_gateway() -> None:
    cluster = Cluster()
    order_fold.tenant_of(cluster, TENANT).dependencies = AFTER_OF_TENANT_MAX - 1
    one, two = (
        spec(after=tuple(("afterany", JobId(f"j{n}")) for n in range(count))) for count in (1, 2)
    )
    order_intents.check_dependencies(cluster, one, TENANT)
    order_intents.check_dependencies(cluster, two, TenantId("another"))
    with pytest.raises(Problem, match="may have 20000: 2 more are too many"):
        order_intents.check_dependencies(cluster, two, TENANT)
    order_intents.check_dependencies(cluster, spec(), TENANT)


def test_a_tenant_over_its_dependencies_is_rejected_by_quota() -> None:
    state = State(Cluster())
    before = held(256)
    say(
        state,
        (f.JobSubmitted(job_id=job_id, spec=spec(hold=True), tenant=TENANT) for job_id in before),
    )
    say(state, after_all(before, AFTER_OF_TENANT_MAX // 256 + 2))
    said: list[AnyFact] = []
    while facts := decide(state, 0):
        state.apply_own(facts, 0)
        said += facts
    rejected = [fact for fact in said if isinstance(fact, f.JobRejected)]
    assert len(rejected) == 2 and "may have 20000" in rejected[0].reason
    assert state.cluster.tenants[TENANT].dependencies <= AFTER_OF_TENANT_MAX


def test_a_log_from_before_the_bound_is_folded_whole_and_a_snapshot_keeps_it() -> None:
    cluster, before = Cluster(), held(300)
    for fact in (
        *(each for job_id in before for each in waiting(job_id, hold=True)),
        *after_all(before, 100),
    ):
        tell(cluster, fact)
    assert cluster.tenants[TENANT].dependencies == 30_000
    assert snapshot.decode(snapshot.encode(cluster)) == cluster
