"""A replica that is to end finishes its answers: no new request, then TERM when the gateways have
nothing there or its grace is over.
"""

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.messages.outstanding import Outstanding, encode
from libs.common.model import JobId
from libs.common.state import model_view
from libs.common.state.cluster import Cluster, Job, WriterMark
from services.scheduler.decide.decide import Observations, decide
from services.scheduler.models.drains import FORGOTTEN_NS, GATEWAYS_MAX, LISTEN_NS, Drains
from services.scheduler.state.state import State
from tests.given import registered
from tests.unit.model_world import World, deployed

ONE = JobId("chat-1")


def stopped(facts: list[AnyFact]) -> list[tuple[str, int, int]]:
    return [
        (fact.job_id, fact.signal, fact.grace_ms)
        for fact in facts
        if isinstance(fact, f.JobStopOrdered)
    ]


def retired(grace_s: int = 30) -> World:
    """A model of one replica that is undeployed while a gateway has a request there."""
    world = World(registered("a"), deployed(1, grace_s=grace_s))
    world.begin("chat-1")
    world.busy = True
    assert stopped(world.hear(f.ModelUndeployed(name="chat"))) == []
    return world


def test_a_retired_replica_gets_no_request_and_no_signal_while_it_answers() -> None:
    world = retired()
    job = world.cluster.jobs[ONE]
    assert (
        world.ready() == []
        and model_view.replica_state(job) == "draining"
        and list(world.state.restless.draining) == [ONE]
    )
    world.at_s += 29
    assert world.decide() == []


def test_a_retired_replica_is_stopped_when_its_grace_is_over() -> None:
    world = retired()
    world.at_s += 31
    assert stopped(world.decide()) == [("chat-1", 15, 30_000)]
    assert (
        world.state.restless.draining == {}
        and model_view.replica_state(world.cluster.jobs[ONE]) == "stopping"
    )


def test_a_scheduler_that_takes_over_stops_a_drained_replica_at_the_same_time() -> None:
    world = retired()
    until_ns = world.cluster.jobs[ONE].drain_until_ns
    world.state = State(world.cluster)
    world.state.epoch = world.cluster.epoch
    world.at_s = until_ns / 1e9 - 1
    assert stopped(world.decide()) == []
    world.at_s += 2
    assert stopped(world.decide()) == [("chat-1", 15, 30_000)]


def test_a_drained_replica_that_is_gone_meanwhile_is_not_stopped_again() -> None:
    world = retired()
    world.end("chat-1", 0)
    assert (
        decide(world.state, int(world.at_s * 1e9), Observations(drained=(ONE, JobId("gone-1"))))
        == ()
    )


def test_a_retired_replica_is_stopped_as_soon_as_nothing_is_outstanding() -> None:
    world = retired()
    world.busy = False
    assert stopped(world.decide()) == [("chat-1", 15, 30_000)]
    assert world.decide() == []


def test_without_grace_a_retired_replica_is_stopped_at_once() -> None:
    world = World(registered("a"), deployed(1, grace_s=0))
    world.begin("chat-1")
    world.busy = True
    assert stopped(world.hear(f.ModelUndeployed(name="chat"))) == [("chat-1", 15, 0)]


def test_a_replica_that_never_was_ready_is_stopped_at_once() -> None:
    world = World(registered("a"), deployed(1))
    world.busy = True
    assert stopped(world.hear(f.ModelUndeployed(name="chat"))) == [("chat-1", 15, 10_000)]


def test_a_user_s_cancel_ends_the_drain_whichever_came_first() -> None:
    world = retired()
    cancel = f.CancelRequested(job_id=ONE, signal=15, grace_s=60)
    assert stopped(world.hear(cancel)) == [("chat-1", 15, 30_000)]
    other = World(registered("a"), deployed(1, grace_s=30))
    other.begin("chat-1")
    other.busy = True
    other.hear(cancel)
    other.hear(
        f.ReplicasScaled(
            model="chat", generation=1, retire=(ONE,), grace_s=30, drain_until_ns=1 << 60
        )
    )
    assert (other.cluster.jobs[ONE].cancel, other.cluster.jobs[ONE].drain_until_ns) == (
        world.cluster.jobs[ONE].cancel,
        0,
    )


def test_the_grace_of_a_redeployment_reaches_the_old_replicas() -> None:
    world = World(registered("a"), deployed(1, grace_s=10))
    world.begin("chat-1")
    world.busy = True
    world.hear(deployed(1, grace_s=120))
    world.begin("chat-2")
    assert (
        world.cluster.jobs[ONE].cancel is not None and world.cluster.jobs[ONE].cancel.grace_s == 120
    )
    world.at_s += 119
    assert world.decide() == []
    world.at_s += 2
    assert stopped(world.decide()) == [("chat-1", 15, 120_000)]


def test_a_fact_of_before_ends_a_replica_at_once_with_its_own_grace() -> None:
    world = World(registered("a"), deployed(1, grace_s=7))
    world.begin("chat-1")
    world.busy = True
    assert stopped(world.hear(f.ReplicasScaled(model="chat", generation=1, retire=(ONE,)))) == [
        ("chat-1", 15, 7_000)
    ]


def test_a_state_built_from_a_snapshot_drains_as_before() -> None:
    world = retired()
    world.state = State(world.cluster)
    world.state.epoch = world.cluster.epoch
    assert list(world.state.restless.draining) == [ONE]
    world.at_s += 31
    assert stopped(world.decide()) == [("chat-1", 15, 30_000)]


class Said:
    """Reports of gateways about one draining replica.

    The log is at 100 and has its retirement at 90.
    """

    def __init__(self) -> None:
        world = retired()
        self.cluster: Cluster = world.cluster
        self.cluster.writers.clear()
        self.drains = Drains()
        self.drains.begin(80, -LISTEN_NS)
        self.drains.retire([ONE], 90)

    def hear(self, instance: str, seq: int, count: int = 0, now_ns: int = 0) -> None:
        self.drains.hear(instance, Outstanding(seq, {ONE: count} if count else {}), now_ns)

    def drained(self, now_ns: int = 0, wall_ns: int = FORGOTTEN_NS) -> tuple[JobId, ...]:
        return self.drains.drained(self.cluster, [ONE], now_ns, wall_ns)


def test_a_replica_is_drained_when_every_gateway_says_so() -> None:
    said = Said()
    said.hear("a", 95)
    assert said.drained() == (ONE,)
    said.hear("b", 95, 1)
    assert said.drained() == ()
    said.hear("b", 96)
    assert said.drained() == (ONE,)


def test_a_gateway_that_has_not_folded_the_retirement_says_nothing_of_it() -> None:
    said = Said()
    said.hear("a", 89)
    assert said.drained() == ()


def test_without_any_gateway_nothing_is_known() -> None:
    assert Said().drained() == ()


def test_a_gateway_that_writes_and_says_nothing_is_unknown() -> None:
    said = Said()
    said.hear("a", 95)
    said.cluster.writers["facts.gateway.b"] = WriterMark(95, 1, FORGOTTEN_NS, 0)
    said.cluster.writers["facts.quota"] = WriterMark(96, 1, FORGOTTEN_NS, 0)
    assert said.drained() == ()
    assert said.drained(wall_ns=2 * FORGOTTEN_NS) == (ONE,)


def test_a_gateway_that_is_silent_for_long_is_forgotten() -> None:
    said = Said()
    said.hear("gone", 50)
    said.hear("a", 95, now_ns=FORGOTTEN_NS - 1)
    assert said.drained(FORGOTTEN_NS - 1) == ()
    assert said.drained(FORGOTTEN_NS) == (ONE,)


def test_a_scheduler_that_takes_over_waits_until_every_gateway_could_report() -> None:
    """The quiet gateway wrote nothing for ten minutes, has a request there, and its report comes
    second.
    """
    said = Said()
    said.drains.begin(80, 0)
    said.hear("a", 95)
    assert said.drained(LISTEN_NS - 1) == ()
    said.hear("quiet", 95, 1)
    assert said.drained(LISTEN_NS) == ()
    said.hear("quiet", 96)
    assert said.drained(LISTEN_NS) == (ONE,)


def test_a_retirement_of_an_earlier_term_counts_from_the_begin_of_this_one() -> None:
    said = Said()
    said.drains.retired.clear()
    said.hear("a", 79)
    assert said.drained() == ()
    said.hear("a", 80)
    assert said.drained() == (ONE,)


def test_a_retirement_that_the_log_does_not_have_yet_is_not_drained() -> None:
    said = Said()
    said.hear("a", 95)
    job: Job = said.cluster.jobs[ONE]
    job.cancel = None
    assert said.drained() == ()
    assert said.drains.drained(said.cluster, [JobId("unknown-1")], 0, 0) == ()


def test_more_gateways_than_there_can_be_are_not_kept() -> None:
    said = Said()
    for number in range(GATEWAYS_MAX + 5):
        said.hear(f"g{number}", 95)
    assert len(said.drains.reports) == GATEWAYS_MAX


def test_a_gateway_is_known_by_its_subject_and_unreadable_words_say_nothing() -> None:
    said = Said()
    for data in (b"", b"hello", encode(5), b"\x92\x01"):
        said.drains.read("outstanding.a", data, 0)
    assert said.drains.reports == {}
    said.drains.read("outstanding.a", encode(Outstanding(95)), 0)
    assert list(said.drains.reports) == ["a"] and said.drained() == (ONE,)
