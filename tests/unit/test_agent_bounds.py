"""The agent's core at its bounds, and what it hears twice, too late, or of attempts that it does
not know.
"""

import pytest

from libs.common import facts as f
from libs.common.devices.error_catalogue import Seen
from libs.common.devices.error_rows import catalogue
from services.node_agent.core import actions as a
from services.node_agent.core import apply, devices
from services.node_agent.core import observations as o
from services.node_agent.core import state as s
from services.node_agent.core.decide import next_due_ns
from tests.given_node import GPU, Node, clean, finished, over, ref, released, start, started, stop


def test_observation_of_an_unknown_attempt_changes_nothing() -> None:
    node = Node()
    assert (
        node.see(
            o.ProcessStarted("unknown.1", 7),
            o.JobLaunched("unknown.1"),
            o.FactsStored(9, (o.Mark("unknown.1", 1),)),
        )
        == []
    )
    assert s.accounted(node.state) == []


def test_launch_reported_after_the_end_changes_no_phase() -> None:
    node = Node().running().exited()
    assert node.see(o.JobLaunched("j.1"), o.LaunchFailed("j.1", "late")) == []
    assert node.state.attempts["j.1"].phase == s.EXITED


def test_an_end_is_heard_once() -> None:
    node = Node().running().exited()
    assert node.see(o.ProcessExited("j.1", o.Exit(executed=True, exit_code=9))) == []
    assert node.see(clean()) == [over(finished(), released())]


def test_a_full_node_takes_no_further_order_in_and_obeys_those_that_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(apply, "ATTEMPTS_MAX", 1)
    node = Node().running()
    assert node.orders(start("other"), stop("another")) == []
    assert s.accounted(node.state) == [ref()]
    assert node.orders(stop()) == [a.StopJob(ref(), 15, 10_000)]


def test_only_so_many_ended_attempts_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "OVER_KEPT", 1)
    node = Node()
    for job in ("first", "second"):
        node.running(job).exited(job)
        node.see(clean(job))
        node.see(o.FactsStored(60, (o.Mark(f"{job}.1", 3),)))
    assert list(node.state.over) == ["second.1"]


def test_facts_beyond_the_bound_are_recorded_in_the_next_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.node_agent.core.decide.RECORD_FACTS_MAX", 1)
    node = Node()
    node.orders(start("a"), start("b"))
    said = node.see(
        *(
            seen
            for job in "ab"
            for seen in (o.JobLaunched(f"{job}.1"), o.ProcessStarted(f"{job}.1", 77))
        )
    )
    assert said == [a.Record((started("a"),), (o.Mark("a.1", 1),))]
    assert next_due_ns(node.state) == 0
    assert node.did() == [a.Record((started("b"),), (o.Mark("b.1", 1),))]


def test_a_second_lease_of_another_digest_asks_no_earlier() -> None:
    node = Node()
    node.lease(digest="other")
    due_ns = node.state.ask_at_ns
    node.now_ns += 1_000
    node.lease(digest="other")
    assert node.state.ask_at_ns == due_ns > 0


def test_device_errors_beyond_the_bound_are_recorded_in_the_next_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.node_agent.core.decide.RECORD_FACTS_MAX", 2)
    node = Node()
    node.state.devices.policy = devices.Policy(catalogue=catalogue())
    told = [
        o.DeviceErrorSeen(
            GPU,
            Seen(
                vendor="nvidia", model="NVIDIA H100", driver="610", error=f"xid {xid}", text="words"
            ),
            "driver",
        )
        for xid in (31, 43, 13)
    ]
    said = [
        [fact.error for fact in record.facts if isinstance(fact, f.GpuErrorSeen)]
        for record in node.see(*told)
        if isinstance(record, a.Record)
    ]
    assert (said, next_due_ns(node.state)) == ([["xid 31", "xid 43"]], 0)
    more = [
        fact.error
        for record in node.did()
        if isinstance(record, a.Record)
        for fact in record.facts
        if isinstance(fact, f.GpuErrorSeen)
    ]
    assert (more, node.state.devices.unrecorded) == (["xid 13"], [])
