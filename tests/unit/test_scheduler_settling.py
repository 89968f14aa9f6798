"""After a restore: nothing is placed before no attempt can be alive that the log does not know."""

from libs.common import facts as f
from libs.common.messages import RESTORED, Heartbeat
from libs.common.model import AttemptRef, JobId, NodeId
from libs.common.state.cluster import (
    LIFE_EPOCHS,
    LIVES_MAX,
    Cluster,
    epoch_at,
    owes_nothing,
)
from services.scheduler.decide.decide import Observations, decide, settle_restore
from services.scheduler.leases.lease_answers import OK, lease_answer, verdict_on
from services.scheduler.leases.settling import is_settled
from services.scheduler.state.state import State
from tests.given import registered, waiting
from tests.restored import RESTORE, TERM, again, restored, told

A, B = NodeId("a"), NodeId("b")


def test_a_restore_begins_a_life_whose_epochs_are_above_all_before() -> None:
    cluster = restored()
    assert (cluster.life, cluster.settling, cluster.epoch) == (1, True, LIFE_EPOCHS)
    told(TERM, cluster=cluster)
    assert cluster.epoch == epoch_at(cluster, cluster.seq) > LIFE_EPOCHS


def test_an_earlier_life_and_one_beyond_the_bound_are_ignored() -> None:
    cluster = restored()
    ignored = cluster.ignored
    for life in (0, 1, LIVES_MAX + 1):
        told(f.ClusterRestored(life=life, backup="y"), cluster=cluster)
    assert (cluster.life, cluster.ignored) == (1, ignored + 3)


def test_nothing_is_placed_until_the_restore_has_settled() -> None:
    cluster = told(TERM, registered("a"), RESTORE, TERM, *waiting("j"))
    state = State(cluster)
    state.begin(cluster.epoch, 0)
    assert decide(state, 0) == ()
    facts = decide(state, 0, Observations(settled=True))
    assert facts == (f.RestoreSettled(life=1),)
    state = State(told(*facts, cluster=cluster))
    state.begin(cluster.epoch, 0)
    assert isinstance(decide(state, 0)[0], f.JobPlaced)


def test_a_cluster_that_was_not_restored_records_no_settling() -> None:
    assert settle_restore(State(told(TERM, registered("a"))), True) == ()


def test_a_settling_of_another_life_is_ignored() -> None:
    cluster = restored()
    told(f.RestoreSettled(life=0), cluster=cluster)
    assert cluster.settling
    told(f.RestoreSettled(life=1), cluster=cluster)
    assert not cluster.settling
    ignored = cluster.ignored
    told(f.RestoreSettled(life=1), cluster=cluster)
    assert cluster.ignored == ignored + 1


def test_a_restore_settles_when_every_node_has_registered_or_is_lost() -> None:
    cluster = restored()
    assert not is_settled(cluster)
    again(cluster, "a")
    assert not is_settled(cluster)
    told(f.NodeLost(node_id=B, incarnation=cluster.nodes[B].incarnation), cluster=cluster)
    assert is_settled(cluster)


def test_an_attempt_that_the_log_does_not_know_keeps_a_restore_from_settling() -> None:
    cluster = restored()
    again(cluster, "a", AttemptRef(JobId("later"), 1))
    again(cluster, "b")
    assert not owes_nothing(cluster, cluster.nodes[A])
    assert not is_settled(cluster)
    told(f.JobReleased(job_id=JobId("later"), attempt=1, node_id=A), cluster=cluster)
    assert is_settled(cluster)


def test_a_replaced_agent_keeps_a_restore_from_settling() -> None:
    cluster = restored()
    again(cluster, "a")
    again(cluster, "b")
    cluster.nodes[B].replaced.append(1)
    assert not is_settled(cluster)


def test_a_node_gets_no_lease_before_it_registers_in_the_new_life() -> None:
    cluster = restored()
    beat = Heartbeat(A, cluster.nodes[A].incarnation, 0, "")
    assert verdict_on(cluster, beat, cluster.nodes[A]) == RESTORED
    answer = lease_answer(cluster, 1, beat, RESTORED, lease_ms=0, roster_digest="")
    assert (answer.life, answer.restore_id, answer.verdict) == (1, "r", RESTORED)
    again(cluster, "a")
    beat = Heartbeat(A, cluster.nodes[A].incarnation, 0, "")
    assert verdict_on(cluster, beat, cluster.nodes[A]) == OK


def test_epochs_of_a_cluster_without_a_restore_are_sequences() -> None:
    assert epoch_at(Cluster(), 7) == 7
