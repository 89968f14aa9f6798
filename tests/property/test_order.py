"""Order of jobs over time.

Shares converge to the weights, no tenant starves where waiting counts, and blocked groups never
change the order of one list.
"""

from collections import Counter

from hypothesis import example, settings
from hypothesis import given as draw
from hypothesis import strategies as st

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, TenantId
from services.scheduler.decide.decide import decide
from services.scheduler.policies import POLICIES
from services.scheduler.queueing.queue_order import before, heads
from services.scheduler.state.state import State
from tests.given import SECOND_NS, ended, given, registered, tell, waiting

# So many that of four tenants the one of least weight is due more than one.
GPUS = 16
ROUNDS = 40
JOB_S = 600


def finish_one(state: State, now_s: int) -> None:
    """The job that was placed first ends after ten minutes."""
    placed = [job for job in state.cluster.jobs.values() if job.state == "placed"]
    for job in sorted(placed, key=lambda job: job.placed_ns)[:1]:
        for node in list(job.members):
            for fact in ended(job.job_id, node, run_ms=JOB_S * 1_000):
                state.refresh(tell(state.cluster, fact, now_s))


def step(state: State, now_s: int) -> None:
    """All that is decided now."""
    while facts := decide(state, now_s * SECOND_NS):
        state.apply_own(facts, now_s * SECOND_NS)


@settings(max_examples=20, deadline=None)
@draw(st.lists(st.integers(1, 4), min_size=2, max_size=4))
@example([1, 1, 1, 4])
@example([4, 1, 1, 1])
def test_fair_share_comes_to_the_weights(weights: list[int]) -> None:
    """Each tenant with waiting jobs holds GPUs by its weight on average.

    No tenant has more than one GPU above its part.
    """
    tenants = [TenantId(f"t{number}") for number in range(len(weights))]
    setting: list[AnyFact] = [f.QueueSet(queue="default", policy="fair_share")]
    setting += [
        f.TenantSet(tenant=name, weight=100 * weight)
        for name, weight in zip(tenants, weights, strict=True)
    ]
    jobs = [
        waiting(f"{name}-{number}", tenant=name)
        for number in range(ROUNDS + GPUS)
        for name in tenants
    ]
    state = given(registered("a", GPUS), setting, *jobs)
    held: Counter[str] = Counter()
    for turn in range(ROUNDS):
        step(state, turn * JOB_S // GPUS)
        held.update({name: state.cluster.tenants[name].held_share for name in tenants})
        finish_one(state, turn * JOB_S // GPUS)
    for name, weight in zip(tenants, weights, strict=True):
        assert held[name] / ROUNDS - 100 * GPUS * weight / sum(weights) <= 100, held


@settings(max_examples=20, deadline=None)
@draw(st.integers(0, 60), st.integers(1, 600))
def test_with_ageing_no_job_starves(priority: int, ageing_s: int) -> None:
    """A job of low priority against a stream of fresh ones of 61 that never ends."""
    state = given(
        registered("a", 1),
        f.QueueSet(queue="default", policy="priority", ageing_s=ageing_s),
        waiting("old", priority=priority),
    )
    bound = (61 - priority) * ageing_s // 600 + 2
    for turn in range(bound + 1):
        for fact in waiting(f"new{turn}", priority=61):
            state.refresh(tell(state.cluster, fact, turn * 600, seq=100 + turn))
        finish_one(state, turn * 600)
        step(state, turn * 600)
        if state.cluster.jobs[JobId("old")].state != "queued":
            return
    raise AssertionError(f"it waited for more than {bound} turns")


JOBS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.integers(0, 3),
        st.integers(1, 3),
        st.integers(0, 3),
        st.sampled_from(("", "night")),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@draw(JOBS, st.sampled_from(tuple(POLICIES)), st.sampled_from(tuple(POLICIES)))
def test_the_order_covers_all_waiting_jobs(
    jobs: list[tuple[str, int, int, int, str]], day: str, night: str
) -> None:
    """Whatever comes by lanes and shapes is in the order that sorting every single job would give,
    and `before` says the same.
    """
    queues = [f.QueueSet(queue="default", policy=day), f.QueueSet(queue="night", policy=night)]
    all_jobs = [
        waiting(
            f"j{number}",
            tenant=tenant,
            priority=priority,
            gpus=gpus,
            estimate_s=estimate,
            queue=queue,
        )
        for number, (tenant, priority, gpus, estimate, queue) in enumerate(jobs)
    ]
    state = given(queues, *all_jobs)
    said = [entry.job_id for entry in heads(state)]
    for job_id in state.queue.waiting:
        job = state.cluster.jobs[job_id]
        ahead = [entry.job_id for entry in before(state, job)]
        assert ahead == [other for other in said if other in ahead] == said[: len(ahead)]
        assert (job_id in said) == (said[len(ahead) : len(ahead) + 1] == [job_id])
