"""Preemption and gangs: a gang ends whole, and one that lost a node keeps its other nodes."""

from libs.common import facts as f
from libs.common.model import JobId, NodeId
from tests.given import (
    ended,
    finished,
    given,
    member,
    placed,
    registered,
    released,
    tell,
    waiting,
)
from tests.unit.preemption_facts import gang_on, reserved, running
from tests.unit.scheduler_decisions import decisions, hear


def test_a_gang_that_lost_a_node_keeps_its_other_nodes_and_gets_a_free_one() -> None:
    nodes = [registered(name, gpus=2) for name in ("a", "b", "c")]
    state = given(
        *nodes, gang_on("a", "b"), waiting("stranger", gpus=2, priority=90, node_list=("a",))
    )
    hear(state, f.NodeLost(node_id=NodeId("b"), incarnation=1))
    facts = decisions(state)
    assert facts[0] == f.JobStopOrdered(
        job_id=JobId("gang"), attempt=1, reason="gang_hurt", signal=15, grace_ms=10_000
    )
    assert facts[1] == reserved("gang", member("a", 0, 1), member("c", 0, 1, rank=1), attempt=2)
    hear(state, finished("gang", "a", None, signal=15, reason="stopped"), released("gang", "a"))
    again = placed("gang", member("a", 0, 1), member("c", 0, 1, rank=1), attempt=2, port=29_501)
    assert decisions(state) == [
        f.JobRequeued(job_id=JobId("gang"), attempt=1, reason="node_lost", counted=False),
        again,
    ]


def test_a_gang_without_a_free_node_waits_in_the_queue() -> None:
    nodes = [registered(name, gpus=2) for name in ("a", "b")]
    state = given(*nodes, gang_on("a", "b"), waiting("stranger", gpus=2, priority=90))
    hear(state, f.NodeLost(node_id=NodeId("b"), incarnation=1))
    assert [type(fact) for fact in decisions(state)] == [f.JobStopOrdered]
    hear(state, finished("gang", "a", None, signal=15, reason="stopped"), released("gang", "a"))
    assert [fact.job_id for fact in decisions(state)] == ["gang", "stranger"]


def test_a_gang_without_requeue_gets_no_reservation() -> None:
    nodes = [registered(name, gpus=2) for name in ("a", "b", "c")]
    state = given(*nodes, gang_on("a", "b", requeue=False))
    hear(state, f.NodeLost(node_id=NodeId("b"), incarnation=1))
    assert [type(fact) for fact in decisions(state)] == [f.JobStopOrdered]


def test_a_gang_that_failed_by_itself_gets_no_reservation() -> None:
    nodes = [registered(name, gpus=2) for name in ("a", "b", "c")]
    state = given(*nodes, gang_on("a", "b", retries=3))
    hear(state, *ended("gang", "b", 1)[1:])
    assert [type(fact) for fact in decisions(state)] == [f.JobStopOrdered]


def test_a_gang_that_requires_one_rack_gets_room_in_one_rack() -> None:
    """The cheapest two nodes are in different racks."""
    nodes = [
        registered(name, gpus=2, rack=rack, spine="s")
        for name, rack in (("a", "x"), ("b", "y"), ("c", "y"))
    ]
    jobs = [fact for name in "abc" for fact in running(f"on-{name}", 0, 1, node=name)]
    for required in ("rack", "spine"):
        state = given(
            *nodes, jobs, waiting("high", nodes=2, gpus=2, priority=90, **{required: "required"})
        )
        for name, at_s in (("a", 8), ("b", 7), ("c", 1)):
            tell(
                state.cluster,
                f.JobCheckpointed(job_id=JobId(f"on-{name}"), attempt=1, node_id=NodeId(name)),
                at_s=at_s,
            )
        ending = sorted(fact.job_id for fact in decisions(state, now_s=9)[1:])
        assert ending == (["on-b", "on-c"] if required == "rack" else ["on-a", "on-b"])


def test_the_other_nodes_of_a_preempted_gang_cost_nothing_more() -> None:
    """Two nodes of one gang, rather than one of them and another job's."""
    nodes = [registered(name, gpus=2) for name in "abc"]
    gang = gang_on("a", "b", preemptible=True)
    state = given(
        *nodes, gang, running("old", 0, 1, node="c"), waiting("high", nodes=2, gpus=2, priority=90)
    )
    tell(
        state.cluster,
        f.JobCheckpointed(job_id=JobId("gang"), attempt=1, node_id=NodeId("a")),
        at_s=8,
    )
    assert [fact.job_id for fact in decisions(state, now_s=9)] == ["high", "gang"]


def test_a_job_whose_end_is_needed_is_not_spared() -> None:
    """CPUs: the last that ends brings them, and the first is needed for its device."""
    node = registered("a", gpus=2, cpus_milli=2_000)
    jobs = [
        *running("one", 0, cpus_milli=500),
        *running("two", 1, cpus_milli=500),
        *running("host", gpus=0, cpus_milli=1_000),
    ]
    state = given(node, jobs, waiting("high", gpus=2, cpus_milli=1_000, priority=90))
    for job, at_s in (("one", 7), ("two", 8), ("host", 1)):
        tell(
            state.cluster,
            f.JobCheckpointed(job_id=JobId(job), attempt=1, node_id=NodeId("a")),
            at_s=at_s,
        )
    assert [fact.job_id for fact in decisions(state, now_s=9)] == ["high", "two", "one"]
