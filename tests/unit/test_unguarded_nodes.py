"""A node whose lease watchdog is missing: it takes no new work, and its silence proves nothing."""

import msgspec
import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.life import node_life
from libs.common.model import AttemptRef, JobId, NodeId
from libs.common.state.cluster import silent_nodes
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core import state as s
from services.node_agent.watchdog.beats import ARMED, REALTIME, Beat, beat_metrics
from services.scheduler.explain.explain import explain
from services.scheduler.leases.leases import MS, Leases
from tests.given import given, member, placed, registered, started, waiting
from tests.given_node import INCARNATION, Node
from tests.unit.scheduler_decisions import decisions

A, J = NodeId("a"), JobId("j")
ENDED = "it ended (signal 9)"


def changed(missing: str = ENDED, incarnation: int = 1, armed_s: int = 0) -> f.WatchdogChanged:
    return f.WatchdogChanged(
        node_id=A, incarnation=incarnation, missing=missing, armed_ms=armed_s * 1_000
    )


def loss(reason: str) -> f.NodeLost:
    at_ns = 1_000_000_000 if reason in ("silent", "unguarded") else 0
    return f.NodeLost(node_id=A, incarnation=1, reason=reason, lost_ns=at_ns)


def running(fence_s: int = 0) -> list[AnyFact]:
    nodes = [fenced(fence_s), registered("b")]
    return [*nodes, *waiting("j"), placed("j", member("a", 0)), started("j", "a")]


def fenced(seconds: int) -> f.NodeRegistered:
    return msgspec.structs.replace(registered("a"), fence_ms=seconds * 1_000)


def test_a_node_without_its_watchdog_takes_no_new_work_until_it_runs_again() -> None:
    state = given(registered("a"), changed(), waiting("j"))
    assert decisions(state) == []
    assert [each["what"] for each in explain(state, J)["blockers"]] == [
        f"node withheld: its lease watchdog is missing: {ENDED}"
    ]
    back = given(registered("a"), changed(), changed(""), waiting("j"))
    assert decisions(back) == [placed("j", member("a", 0))]
    again = given(registered("a"), changed(), registered("a", incarnation=2))
    assert again.cluster.nodes[A].takes_work


def test_a_change_of_another_incarnation_or_an_unknown_node_is_ignored() -> None:
    state = given(registered("a"), changed(incarnation=2))
    assert not state.cluster.nodes[A].unguarded
    assert given(changed()).cluster.nodes == {}


def test_jobs_of_a_silent_node_without_watchdog_stay_until_an_operator_declares_it_dead() -> None:
    state = given(running(), changed())
    assert decisions(state, silent=[(A, 1)]) == [loss(node_life.UNGUARDED)]
    job = state.cluster.jobs[J]
    assert silent_nodes(state.cluster, job) == [A]
    word = f.NodeDeclaredDead(node_id=A, incarnation=1, lost=1)
    assert decisions(given(running(), changed(), loss(node_life.UNGUARDED), word)) == [
        loss(node_life.DECLARED_DEAD),
        f.JobRequeued(job_id=J, attempt=1, reason="node_lost", counted=False),
        placed("j", member("b", 0), attempt=2, port=29_501),
    ]


def test_jobs_of_a_silent_node_with_an_armed_hardware_watchdog_start_elsewhere() -> None:
    first, second, _ = decisions(given(running(5), changed(armed_s=5)), silent=[(A, 1)])
    assert (first, type(second)) == (loss(node_life.SILENT), f.JobRequeued)


def test_jobs_of_a_silent_node_stay_if_its_leases_are_too_short_for_the_hardware_watchdog() -> None:
    """The lease watchdog released the device under `muster leases fast`, and then went missing."""
    facts = [*running(5), changed("", armed_s=5), changed("", armed_s=0), changed()]
    assert decisions(given(facts), silent=[(A, 1)]) == [loss(node_life.UNGUARDED)]


def test_jobs_of_a_silent_node_stay_if_its_agent_cannot_use_the_hardware_watchdog() -> None:
    """Another program uses the device, for example. The former life of the agent had armed it."""
    busy = changed("it cannot use the hardware watchdog /dev/watchdog: Device busy", incarnation=2)
    again = msgspec.structs.replace(
        fenced(5), incarnation=2, attempts=(AttemptRef(job_id=J, attempt=1),)
    )
    state = given(*running(5), changed("", armed_s=5), again, busy)
    assert decisions(state, silent=[(A, 2)]) == [
        msgspec.structs.replace(loss(node_life.UNGUARDED), incarnation=2)
    ]


def test_jobs_of_a_silent_node_stay_if_its_agent_does_not_say_whether_the_device_is_armed() -> None:
    """An agent of an earlier version registers the setting only."""
    assert decisions(given(running(5), changed()), silent=[(A, 1)]) == [loss(node_life.UNGUARDED)]


@pytest.mark.parametrize("armed_s", [0, 5])
def test_silence_counts_later_where_only_a_hardware_watchdog_ends_jobs(armed_s: int) -> None:
    """Also while it is not known to be armed: it may be."""
    seen = (fenced(5), registered("b"), registered("c"), changed(armed_s=armed_s))
    cluster = given(*seen).cluster
    leases, after = Leases(), (13_000 + 3_000 + 1_500) * MS
    leases.begin(cluster, 0)
    lost = {}
    for now in range(0, after + 9_000 * MS, 500 * MS):
        for node_id in ("b", "c"):
            leases.hear(cluster, NodeId(node_id), now, True)
            leases.grant(cluster, NodeId(node_id), now)
        for node_id, _ in leases.silent(cluster, cluster, now):
            lost.setdefault(node_id, now)
    assert after + 5_000 * MS < lost[A] < after + 6_500 * MS


def test_the_agent_records_each_change_of_its_watchdog_once() -> None:
    node = Node()
    fact = f.WatchdogChanged(node.state.node_id, INCARNATION, missing=ENDED)
    assert node.see(o.GuardChanged(ENDED)) == [a.Record((fact,), ())]
    assert node.see(o.GuardChanged(ENDED)) == []
    again = msgspec.structs.replace(fact, missing="")
    assert node.see(o.GuardChanged("")) == [a.Record((again,), ())]


def test_the_agent_records_each_change_of_the_hardware_watchdog_once() -> None:
    node = Node()
    armed = f.WatchdogChanged(node.state.node_id, INCARNATION, missing="", armed_ms=5_000)
    assert node.see(o.GuardChanged("", 5_000)) == [a.Record((armed,), ())]
    assert node.see(o.GuardChanged("", 5_000)) == []
    released = msgspec.structs.replace(armed, armed_ms=0)
    assert node.see(o.GuardChanged("", 0)) == [a.Record((released,), ())]


def test_a_new_incarnation_records_a_watchdog_that_is_still_missing() -> None:
    node = Node()
    node.see(o.GuardChanged(ENDED))
    node.state = s.begin(node.state.node_id, INCARNATION + 1, (), node.state)
    (record,) = node.did()
    assert isinstance(record, a.Record)
    assert record.facts == (f.WatchdogChanged(node.state.node_id, INCARNATION + 1, missing=ENDED),)


def test_metrics_show_the_beat_and_what_the_watchdog_did() -> None:
    lines = beat_metrics("n", Beat(7, REALTIME | ARMED, killed=3, left=2), 0.5, restarts=-1)
    for line in (
        'muster_lease_watchdog_beat_age_seconds{Hostname="n"} 0.5',
        'muster_lease_watchdog_armed{Hostname="n"} 1',
        'muster_lease_watchdog_kills_total{Hostname="n"} 3',
        'muster_lease_watchdog_restarts_total{Hostname="n"} 0',
    ):
        assert line in lines
