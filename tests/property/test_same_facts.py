"""Same facts, same decisions: a scheduler that starts from a snapshot at any point and folds the
tail decides, byte for byte, what one decides that lived through it all.
"""

from random import Random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.common import facts as f
from libs.common import subjects
from libs.common.facts import AnyFact, Commit
from libs.common.model import JobId, JobSpec, TenantId
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot
from services.scheduler.decide.decide import decide
from services.scheduler.state.state import State
from tests.history import SECOND, subject_of
from tests.property.fact_values import JOBS, TENANTS
from tests.property.facts_of_all_kinds import by_gateways, by_quota
from tests.property.facts_of_nodes import by_nodes

SEEDS = st.integers(0, 1 << 32)
STEPS = 90
ROUND_MAX = 60
# Never: each scheduler counts a start limit from zero.
START_S = 1 << 20

Entry = tuple[int, str, Commit]


class Live:
    """A scheduler in its term, and the log that it and the others write: every decision is in the
    log at once.
    """

    def __init__(self) -> None:
        self.state = State(Cluster())
        self.log: list[Entry] = []
        self.numbers: dict[str, int] = {}
        self.write([f.TermBegan(instance="a")], subjects.SCHEDULER)
        self.state.begin(self.state.cluster.epoch, 0)

    def write(self, facts: list[AnyFact], subject: str = "") -> None:
        subject = subject or subject_of(facts[0])
        number = self.numbers[subject] = self.numbers.get(subject, 0) + 1
        seq = len(self.log) + 1
        epoch = self.state.cluster.epoch or seq
        commit = Commit(
            version=f.VERSION,
            min_reader=f.VERSION,
            writer=subject,
            number=number,
            epoch=epoch,
            at_ns=seq * SECOND,
            seen=seq - 1,
            facts=tuple(facts),
        )
        self.log.append((seq, subject, commit))
        self.state.apply_entry(seq, subject, commit)


def some_facts(cluster: Cluster, chance: Random) -> list[AnyFact]:
    """Return one commit of another writer, often with several submissions of different shapes."""
    fresh = [job_id for job_id in JOBS if job_id not in cluster.jobs]
    if fresh and chance.random() < 0.4:
        return [
            f.JobSubmitted(job_id=job_id, spec=a_spec(chance), tenant=chance.choice(TENANTS))
            for job_id in chance.sample(fresh, chance.randint(1, len(fresh)))
        ]
    if chance.random() < 0.1:
        return [
            f.TenantSet(
                tenant=TenantId(chance.choice(TENANTS)),
                max_gpu_share=chance.choice((0, 50, 100, 300)),
            )
        ]
    waiting = [
        job.job_id for job in cluster.jobs.values() if job.state == "pending" and not job.admitted
    ]
    if waiting and chance.random() < 0.5:
        chance.shuffle(waiting)
        return [f.JobAdmitted(job_id=JobId(job_id)) for job_id in waiting]
    said = [*by_gateways(cluster, chance), *by_quota(cluster, chance), *by_nodes(cluster, chance)]
    by_kind: dict[str, list[AnyFact]] = {}
    for fact in said:
        by_kind.setdefault(f.kind_of(fact), []).append(fact)
    fact = chance.choice(by_kind[chance.choice(sorted(by_kind))])
    if isinstance(fact, f.JobSubmitted):
        fact = msgspec.structs.replace(fact, spec=a_spec(chance))
    if isinstance(fact, f.ModelDeployed):
        fact = msgspec.structs.replace(
            fact, spec=msgspec.structs.replace(fact.spec, start_s=START_S)
        )
    if isinstance(fact, f.NodeRegistered):
        fact = msgspec.structs.replace(fact, address=chance.choice(("10.0.0.1", "10.0.0.2")))
    return [fact]


def a_spec(chance: Random) -> JobSpec:
    """Start limits are counted by each scheduler's own clock: none passes here, so that only an
    estimate says when a job ends.
    """
    return JobSpec(
        command=("true",),
        nodes=chance.choice((1, 1, 2)),
        gpus=chance.choice((0, 1, 1, 2)),
        gpu_share=chance.choice((25, 50, 100)),
        priority=chance.choice((10, 50)),
        start_s=START_S,
        time_limit_s=chance.choice((0, 0, 3)),
        estimate_s=chance.choice((0, 4, 9, 30)),
        preemptible=chance.random() < 0.5,
        reservation=chance.choice(("", "", "course")),
    )


@settings(max_examples=150, deadline=None)
@given(SEEDS)
def test_a_scheduler_from_a_snapshot_and_the_tail_decides_as_the_one_that_lived_through_it(
    seed: int,
) -> None:
    chance = Random(seed)
    live = Live()
    cut = chance.randrange(STEPS)
    started: State | None = None
    for step in range(STEPS):
        if step == cut:
            cluster = snapshot.decode(snapshot.encode(live.state.cluster))
            assert cluster is not None
            started = State(cluster)
            started.begin(live.state.epoch, 0)
        begun = len(live.log)
        live.write(some_facts(live.state.cluster, chance))
        follow(live, started, begun)


def follow(live: Live, started: State | None, begun: int) -> None:
    """Fold what is new and decide until both have nothing to say; each decision of the one must be
    the other's, in its turn.
    """
    for _ in range(ROUND_MAX):
        if started is not None:
            for entry in live.log[begun:]:
                started.apply_entry(*entry)
        begun = len(live.log)
        now = begun * SECOND
        wanted = tuple(decide(live.state, now))
        if started is not None:
            assert msgspec.msgpack.encode(tuple(decide(started, now))) == msgspec.msgpack.encode(
                wanted
            )
            assert snapshot.encode(started.cluster) == snapshot.encode(live.state.cluster)
        if not wanted or chance_to_wait(live):
            return
        live.write(list(wanted), subjects.SCHEDULER)


def chance_to_wait(live: Live) -> bool:
    """Now and then the scheduler is slow, and what it would have decided is decided later, among
    other things.
    """
    return len(live.log) % 5 == 0


def test_devices_kept_for_a_refused_job_are_used_once_its_exclusion_is_over() -> None:
    """A seed in which the exclusion of a node ended while devices were reserved for the job."""
    test = test_a_scheduler_from_a_snapshot_and_the_tail_decides_as_the_one_that_lived_through_it
    test.hypothesis.inner_test(540)  # type: ignore[attr-defined]
