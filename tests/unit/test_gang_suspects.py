"""Suspects of a gang's preflight: no running job is stopped for them. And places that get lost."""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.facts.fabric_facts import (
    ABANDONED,
    PASSED,
    SUSPECT,
    LinkSuspected,
    NodeMeasured,
    PairMeasured,
)
from libs.common.model import JobId, NodeId, TenantId
from services.scheduler.decide import elastic, placing
from services.scheduler.explain.explain import explain
from services.scheduler.queueing.backfill import HeadReservation, ends_in_time
from services.scheduler.state.state import State
from tests.given import EPOCH, SECOND_NS, ended, member, placed, started, waiting
from tests.unit.fabric_world import FAST, FabricWorld
from tests.unit.scheduler_decisions import decisions, hear
from tests.unit.test_gang_preflight import JOB, begin, ends, nodes_of, submit

GROWS_AFTER_S = 2
# The gang avoids a suspect for 600 s.
LATER_S = 700.0
SAVES: dict[str, Any] = {"preemptible": True, "checkpoint_signal": 10, "checkpoint_grace_s": 30}


def growing(slow: str = "n03") -> FabricWorld:
    """A gang runs on five of six nodes, because its preflight found the other one slow. The time
    for which it avoids that node is over.
    """
    given = FabricWorld(6)
    given.state = State(given.state.cluster, grow_after_s=GROWS_AFTER_S)
    given.state.begin(EPOCH, 0)
    given.capacity[NodeId(slow)] = FAST // 2
    submit(given, nodes=4, nodes_max=6, **SAVES)
    made = given.run()
    assert [each.outcome for each in ends(made)] == [SUSPECT, PASSED]
    assert len(nodes_of(made)) == 5
    hear(given.state, *(started("gang", node_id) for node_id in nodes_of(made)))
    decisions(given.state, given.now_s)
    given.now_s += LATER_S
    return given


def end_test(
    given: FabricWorld, node_id: str, *links: LinkSuspected, reason: str = "", measured: bool = True
) -> None:
    """Let a test of the fabric end with this verdict on the node."""
    given.now_s += 1
    at_ns, first, node = int(given.now_s * SECOND_NS), NodeId("n00"), NodeId(node_id)
    results = (PairMeasured(first, node, FAST, FAST, FAST, 1),) if measured else ()
    hear(
        given.state,
        f.FabricTestBegun(test="t", purpose="requested", nodes=tuple(given.names)),
        f.FabricRoundOrdered(test="t", number=1, pairs=((first, node),)),
        f.FabricRoundClosed(test="t", number=1, pairs=results, at_ns=at_ns),
        f.FabricTestEnded(
            test="t",
            outcome="done",
            nodes=(NodeMeasured(first, FAST), NodeMeasured(node, FAST, reason=reason)),
            links=links,
            at_ns=at_ns,
        ),
    )
    given.state.none_grows, given.state.no_room = (), ()


def preempted_jobs(made: list[AnyFact]) -> list[str]:
    return [fact.job_id for fact in made if isinstance(fact, f.JobPreempted)]


def test_a_running_gang_does_not_restart_to_grow_onto_a_suspect_of_its_preflight() -> None:
    given = growing()
    assert decisions(given.state, given.now_s) == []
    assert given.state.cluster.jobs[JOB].attempt == 1


def test_it_grows_once_a_test_finds_nothing_wrong_with_the_node() -> None:
    given = growing()
    end_test(given, "n03")
    made = decisions(given.state, given.now_s)
    assert preempted_jobs(made) == [JOB]
    assert isinstance(made[0], f.DevicesReserved) and len(made[0].members) == 6


def test_a_test_that_did_not_measure_the_node_clears_nothing() -> None:
    given = growing()
    end_test(given, "n03", measured=False)
    assert decisions(given.state, given.now_s) == []


def test_it_does_not_grow_while_a_link_of_the_node_is_a_suspect() -> None:
    given = growing()
    end_test(given, "n03", LinkSuspected(NodeId("n00"), NodeId("n03"), FAST // 4, 250))
    assert decisions(given.state, given.now_s) == []


def test_it_does_not_grow_onto_a_suspect_of_a_test() -> None:
    given = growing()
    end_test(given, "n03", reason="slow")
    assert decisions(given.state, given.now_s) == []


def test_a_gang_without_preflight_grows_onto_any_node() -> None:
    given = FabricWorld(3)
    given.state = State(given.state.cluster, grow_after_s=GROWS_AFTER_S)
    given.state.begin(EPOCH, 0)
    hear(given.state, *waiting("other", gpus=2), placed("other", member("n02", 0, 1)))
    submit(given, nodes=2, nodes_max=3, preflight=False, **SAVES)
    made = given.run()
    hear(given.state, *(started("gang", node_id) for node_id in nodes_of(made)))
    decisions(given.state, given.now_s)
    hear(given.state, *ended("other", "n02"))
    end_test(given, "n02", reason="slow")
    assert preempted_jobs(decisions(given.state, given.now_s + GROWS_AFTER_S)) == [JOB]


def test_the_end_of_a_test_lets_running_gangs_be_checked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = growing()
    hear(given.state, f.FabricTestRequested(test="t"))
    given.run()
    checked: list[str] = []
    monkeypatch.setattr(elastic, "_more_room", lambda state, job, _: checked.append(job.job_id))
    assert decisions(given.state, given.now_s) == [] and checked == []
    hear(given.state, f.FabricTestRequested(test="t2"))
    assert any(isinstance(fact, f.FabricTestEnded) for fact in given.run())
    assert checked == [JOB]


def test_no_job_is_preempted_for_a_suspect_of_a_preflight() -> None:
    given = FabricWorld(6)
    given.capacity[NodeId("n03")] = FAST // 2
    submit(given, nodes=6, priority=90)
    assert [each.excluded for each in ends(given.run())] == [("n03",)]
    low = [
        *waiting("low", priority=10, preemptible=True, gpus=2),
        placed("low", member("n03", 0, 1)),
    ]
    hear(given.state, *low, started("low", "n03"))
    given.now_s += LATER_S
    assert preempted_jobs(decisions(given.state, given.now_s)) == []
    end_test(given, "n03")
    assert preempted_jobs(decisions(given.state, given.now_s)) == ["low"]


def test_a_later_preflight_that_passes_clears_a_suspect() -> None:
    given = FabricWorld(6)
    given.capacity[NodeId("n03")] = FAST // 2
    submit(given, nodes=6)
    given.run()
    job = given.state.cluster.jobs[JOB]
    assert job.preflight is not None and list(job.preflight.suspects) == ["n03"]
    given.capacity[NodeId("n03")] = FAST
    given.now_s += LATER_S
    made = given.run()
    assert ends(made)[-1].outcome == PASSED and len(nodes_of(made)) == 6
    assert job.preflight.suspects == {}


def test_a_place_that_becomes_unusable_is_given_up_and_another_one_measured_a_second_later() -> (
    None
):
    given = FabricWorld(3)
    submit(given, nodes=2)
    begin(given)
    hear(given.state, f.NodeDrained(node_id=NodeId("n00"), test="t", evidence="slow"))
    made = given.run()
    assert [each.outcome for each in ends(made)] == [ABANDONED] and nodes_of(made) == []
    answer = str(explain(State(given.state.cluster), JOB)["answer"])
    words = "a node or device on n00, n01 became unusable during its preflight"
    assert answer.startswith(f"{words}: it is tried again in a second")
    given.now_s += 1.1
    made = given.run()
    assert [each.outcome for each in ends(made)] == [PASSED]
    assert nodes_of(made) == ["n01", "n02"]


def test_rules_that_disagree_about_a_place_do_not_reserve_it_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(placing, "is_broken", lambda state, job: True)
    given = FabricWorld(3)
    submit(given, nodes=2)
    made = decisions(given.state, given.now_s)
    assert sum(1 for fact in made if isinstance(fact, f.FabricTestBegun)) == 1


def test_the_next_preflight_of_a_gang_replaces_one_that_is_open() -> None:
    given = FabricWorld(3)
    submit(given, nodes=2)
    begin(given)
    nodes = tuple(given.names[1:])
    hear(
        given.state,
        f.FabricTestBegun(test="p2", purpose="preflight", nodes=nodes, job_id=JOB, attempt=1),
    )
    assert list(given.state.cluster.fabric.tests) == ["p2"]


def test_backfill_counts_the_time_of_a_preflight() -> None:
    given = FabricWorld(2)
    fields = {"nodes": 2, "time_limit_s": 80, "start_s": 10, "grace_s": 10}
    submit(given, **fields)
    hear(given.state, *waiting("plain", **fields))
    first = HeadReservation(104 * SECOND_NS, nodes=0, tenant=TenantId("default"), share=0)
    jobs = given.state.cluster.jobs
    assert ends_in_time(jobs[JobId("plain")], first, now_ns=0)
    assert not ends_in_time(jobs[JOB], first, now_ns=0)
    assert ends_in_time(jobs[JOB], first._replace(when_ns=105 * SECOND_NS), now_ns=0)
