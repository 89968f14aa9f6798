"""The agent's replicas: probed from their start, said to be ready or not, ended when they never
are.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.messages import StartOrder
from libs.common.model import JobId, Serve
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core.serving import EVERY_STARTING_NS, argv_of
from tests.given_node import (
    GPU,
    NODE,
    Node,
    S,
    clean,
    finished,
    over,
    ref,
    released,
    start,
    started,
)

KEY = "j.1"
EVERY_READY_NS = 5_000_000_000
PROBE = o.Probe(29_501, "/health", 60, 10)
ASK = a.ProbeReplica(ref(), 29_501, "/health")
READY = f.ReplicaReady(job_id=JobId("j"), attempt=1, node_id=NODE)


def unready(reason: str) -> f.ReplicaUnready:
    return f.ReplicaUnready(job_id=JobId("j"), attempt=1, node_id=NODE, reason=reason)


def order() -> StartOrder:
    whole = start()
    serve = Serve("chat", 1, "/health", 60)
    return replace(
        whole,
        port=29_501,
        spec=replace(whole.spec, command=("serve", "--port={port}", "{port}"), serve=serve),
    )


def test_only_the_first_node_of_a_replica_is_probed() -> None:
    node, second = Node(), replace(order(), rank=1)
    assert node.orders(second) == [a.StartJob(second)]
    assert node.see(o.JobLaunched(KEY), o.ProcessStarted(KEY, 77)) == [said(started(), level=1)]
    assert node.later(3_600 * S) == []


def serving() -> Node:
    """A replica that runs, and is being asked for the first time."""
    node = Node()
    assert node.orders(order()) == [a.StartJob(order())]
    assert node.see(o.JobLaunched(KEY), o.ProcessStarted(KEY, 77)) == [
        ASK,
        said(started(), level=1),
    ]
    return node


def answering() -> Node:
    node = serving()
    assert node.see(o.Probed(KEY, "")) == [said(READY)]
    return node


def said(*facts: Any, level: int = 1) -> a.Record:
    return a.Record(facts, (o.Mark(KEY, level),))


def failing(node: Node, times: int, reason: str = "status 500") -> list[a.Action]:
    """It is asked so many times and answers badly; what the last answer led to."""
    did: list[a.Action] = []
    for _ in range(times):
        assert node.later(EVERY_READY_NS) == [ASK]
        did = node.see(o.Probed(KEY, reason))
    return did


def test_a_probe_s_answer_about_a_job_that_serves_nothing_is_no_news() -> None:
    node = Node()
    plain = replace(order(), spec=replace(order().spec, serve=None))
    assert node.orders(plain) == [a.StartJob(plain)]
    assert node.see(o.JobLaunched(KEY), o.ProcessStarted(KEY, 77)) == [said(started(), level=1)]
    assert node.see(o.Probed(KEY, "")) == []


def test_the_port_stands_in_the_command_of_a_replica_and_of_no_other_job() -> None:
    assert argv_of(order(), "10.0.0.7") == ("serve", "--port=29501", "29501")
    other = replace(order(), spec=replace(order().spec, serve=None))
    assert argv_of(other, "10.0.0.7") == ("serve", "--port={port}", "{port}")


def test_the_node_s_address_stands_in_the_command_of_a_replica_that_is_hosted() -> None:
    words = ("serve", "--host={host}", "{port}")
    plain = replace(order(), spec=replace(order().spec, command=words))
    assert argv_of(plain, "10.0.0.7") == ("serve", "--host={host}", "29501")
    there = replace(plain, spec=replace(plain.spec, serve=replace(plain.spec.serve, hosted=True)))
    assert argv_of(there, "10.0.0.7") == ("serve", "--host=10.0.0.7", "29501")


def test_a_replica_with_a_key_is_probed_with_it() -> None:
    node, plain = Node(), order()
    spec = replace(plain.spec, serve=replace(plain.spec.serve, keyed=True))
    node.orders(replace(plain, spec=spec))
    seen = node.see(o.JobLaunched(KEY), o.ProcessStarted(KEY, 77))
    assert replace(ASK, keyed=True) in seen and ASK not in seen


def test_a_replica_is_probed_from_its_start_until_it_answers() -> None:
    node = serving()
    assert node.later(EVERY_STARTING_NS) == []
    assert node.see(o.Probed(KEY, "no connection")) == []
    assert node.later(EVERY_STARTING_NS - 1) == []
    assert node.later(1) == [ASK]
    assert node.see(o.Probed(KEY, "")) == [said(READY)]
    assert node.later(EVERY_READY_NS - 1) == []
    assert node.later(1) == [ASK]
    assert node.see(o.Probed(KEY, "")) == []


def test_another_job_is_never_probed() -> None:
    node = Node().running()
    assert node.later(3_600 * S) == []


def test_a_ready_replica_is_unready_after_three_failures_in_a_row_and_ready_after_one_success() -> (
    None
):
    node = answering()
    assert failing(node, 2) == []
    assert node.later(EVERY_READY_NS) == [ASK]
    assert node.see(o.Probed(KEY, "")) == []
    assert failing(node, 3) == [said(unready("status 500"))]
    assert node.later(S) == [ASK]
    assert node.see(o.Probed(KEY, "")) == [said(READY)]


ANSWERED = o.ReplicaAnswered(KEY)


@pytest.mark.attack
def test_a_replica_that_answers_requests_stays_ready_whatever_its_probe_says() -> None:
    node = answering()
    for _ in range(20):
        assert failing(node, 2, "no answer within 2 s") == []
        assert node.see(ANSWERED) == []


@pytest.mark.attack
def test_an_unready_replica_that_answers_a_request_is_ready_again_and_not_ended() -> None:
    node = answering()
    assert failing(node, 3) == [said(unready("status 500"))]
    assert node.see(ANSWERED) == [said(READY)]
    assert a.StopJob(ref(), 15, 10_000) not in node.later(60 * S + 1)


def test_an_answer_of_a_job_that_serves_nothing_is_no_news() -> None:
    assert Node().running().see(ANSWERED) == []


def test_a_model_says_how_its_replicas_are_probed() -> None:
    serve = Serve(
        "chat", 1, "/health", 60, health_interval_s=30, health_timeout_s=20, health_failures=1
    )
    patient = replace(order(), spec=replace(order().spec, serve=serve))
    ask = a.ProbeReplica(ref(), 29_501, "/health", 20)
    node = Node()
    node.orders(patient)
    assert node.see(o.JobLaunched(KEY), o.ProcessStarted(KEY, 77)) == [
        ask,
        said(started(), level=1),
    ]
    assert node.see(o.Probed(KEY, "")) == [said(READY)]
    assert node.later(30 * S - 1) == []
    assert node.later(1) == [ask]
    assert node.see(o.Probed(KEY, "status 500")) == [said(unready("status 500"))]


def test_a_note_of_an_agent_before_these_settings_is_read() -> None:
    assert o.Probe(port=1, path="/", timeout_s=2, grace_s=3) == o.Probe(
        port=1, path="/", timeout_s=2, grace_s=3, interval_s=5, answer_s=0, failures=3
    )


def test_a_replica_that_is_not_ready_in_time_is_ended_and_its_end_says_so() -> None:
    node = serving()
    node.see(o.Probed(KEY, "no connection"))
    assert a.StopJob(ref(), 15, 10_000) not in node.later(60 * S - 1)
    node.see(o.Probed(KEY, "no connection"))
    assert node.later(1) == [a.StopJob(ref(), 15, 10_000)]
    assert node.see(
        o.ProcessExited(KEY, o.Exit(executed=True, exit_code=None, signal=15, reason="stopped"))
    ) == [a.CheckRelease(ref(), (GPU,), True, True)]
    end = finished(exit_code=None, signal=15, reason="startup_timeout")
    assert node.see(clean()) == [over(end, released())]


def test_a_replica_that_was_ready_and_stays_silent_as_long_is_ended_as_unhealthy() -> None:
    node = answering()
    failing(node, 3)
    node.later(60 * S - 1)
    node.see(o.Probed(KEY, "status 500"))
    assert a.StopJob(ref(), 15, 10_000) in node.later(1)
    node.see(o.ProcessExited(KEY, o.Exit(executed=True, exit_code=0, reason="stopped")))
    assert node.later(S) == [said(finished(exit_code=0, reason="unhealthy"), level=2)]


def test_a_replica_that_ends_by_itself_ends_with_its_own_reason() -> None:
    node = answering()
    node.see(o.ProcessExited(KEY, o.Exit(executed=True, exit_code=3)))
    assert node.see(clean()) == [over(finished(exit_code=3), released())]


def test_a_replica_that_is_being_stopped_is_not_probed_any_more() -> None:
    node = answering()
    node.lease(verdict="lost")
    assert node.did() == [a.KillJob(ref())]


def test_adopted_replica_records_no_readiness_before_its_first_probe() -> None:
    found = o.Adopted(ref(), 0, (GPU,), probe=PROBE)
    node = Node(leased=False, adopted=(found,))
    assert node.see(o.ProcessStarted(KEY, 77)) == [ASK, said(started(), level=1)]
    assert node.see(o.Probed(KEY, "")) == [said(READY)]
    silent = Node(leased=False, adopted=(found,))
    silent.see(o.ProcessStarted(KEY, 77))
    assert silent.see(o.Probed(KEY, "no connection")) == []
    assert failing(silent, 2, "no connection") == [said(unready("no connection"))]


def forgotten(node: Node, end: o.Exit) -> a.ForgetJob:
    """The replica exits; the action that follows when the log has its last fact."""
    node.see(o.ProcessExited(KEY, end))
    node.see(clean())
    (forget,) = node.see(o.FactsStored(30, (o.Mark(KEY, 3),)))
    assert isinstance(forget, a.ForgetJob)
    return forget


STOPPED = o.Exit(executed=True, exit_code=None, signal=15, reason="stopped")


def test_only_a_replica_that_answered_until_it_was_stopped_leaves_its_products() -> None:
    assert forgotten(answering(), o.Exit(executed=True, exit_code=0)).healthy
    assert forgotten(answering(), STOPPED).healthy
    assert not forgotten(answering(), o.Exit(executed=True, exit_code=3)).healthy
    assert not forgotten(serving(), o.Exit(executed=True, exit_code=0)).healthy


def test_a_replica_that_the_agent_stopped_as_unhealthy_leaves_no_products() -> None:
    node = answering()
    failing(node, 3)
    assert a.StopJob(ref(), 15, 10_000) in node.later(60 * S)
    assert node.see(o.Probed(KEY, "")) != [a.ForgetJob(ref(), 0)]
    assert not forgotten(node, STOPPED).healthy


def test_an_adopted_replica_keeps_its_readiness_when_its_order_arrives_again() -> None:
    found = o.Adopted(ref(), 0, (GPU,), probe=PROBE)
    node = Node(leased=False, adopted=(found,))
    node.see(o.ProcessStarted(KEY, 77))
    assert node.see(o.Probed(KEY, "")) == [said(READY)]
    node.lease()
    node.desired(order())
    health = node.state.attempts[KEY].health
    assert health is not None and health.ready is True
