"""Jobs whose devices are all idle: warned, then ended, as their tenant's policy says."""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.model import Allocation, JobId, NodeId, TenantId
from libs.common.state.job import idle_since_ns
from services.scheduler.decide.idle import LOOK_EVERY_NS, end_idle
from services.scheduler.explain.explain import explain
from services.scheduler.state.state import State
from tests.given import (
    SECOND_NS,
    finished,
    given,
    member,
    placed,
    registered,
    released,
    started,
    tell,
    waiting,
)
from tests.unit.scheduler_decisions import decisions

J = JobId("j")
MINUTE = 60


def policy(action: str, idle_s: int = 600, grace_s: int = 300) -> f.IdlePolicySet:
    return f.IdlePolicySet(
        tenant=TenantId("default"), action=action, idle_s=idle_s, grace_s=grace_s
    )


def seen(node: str, idle_s: int) -> f.JobIdleSeen:
    return f.JobIdleSeen(job_id=J, attempt=1, node_id=NodeId(node), idle_ms=idle_s * 1_000)


def running(action: str = "release", nodes: tuple[str, ...] = ("a",), **fields: Any) -> State:
    return given(
        *(registered(node) for node in nodes),
        policy(action),
        waiting("j", nodes=len(nodes), **fields),
        placed("j", *(member(node, 0, rank=at) for at, node in enumerate(nodes))),
        *(started("j", node) for node in nodes),
    )


def hear(state: State, fact: f.AnyFact, at_s: float = 0) -> None:
    state.refresh(tell(state.cluster, fact, at_s=at_s))


def warned(
    idle_s: int, since_s: int, action: str, ends_s: int, policy_s: int = 0, ended: int = 0
) -> f.JobIdleWarned:
    return f.JobIdleWarned(
        job_id=J,
        attempt=1,
        idle_s=idle_s,
        action=action,
        since_ns=since_s * SECOND_NS or 1,
        ends_ns=ends_s * SECOND_NS,
        policy_ns=policy_s * SECOND_NS,
        ended=ended,
    )


def stopped(signal: int = 15, grace_ms: int = 10_000) -> f.JobStopOrdered:
    return f.JobStopOrdered(
        job_id=J, attempt=1, reason="idle_gpus", signal=signal, grace_ms=grace_ms
    )


def test_an_idle_job_is_warned_and_then_released() -> None:
    state = running()
    hear(state, seen("a", MINUTE), at_s=70)
    assert decisions(state, 609) == []
    assert decisions(state, 611) == [warned(601, 10, "release", 911)]
    assert decisions(state, 909) == []
    assert decisions(state, 912) == [stopped()]
    assert decisions(state, 914) == []


def test_a_job_whose_device_computes_again_is_not_ended() -> None:
    state = running()
    hear(state, seen("a", MINUTE), at_s=70)
    assert decisions(state, 700) == [warned(690, 10, "release", 1_000)]
    hear(state, seen("a", 0), at_s=800)
    assert state.cluster.jobs[J].idle is None and not state.cluster.idle
    assert decisions(state, 2_000) == []
    hear(state, seen("a", MINUTE), at_s=2_100)
    assert decisions(state, 2_500) == []
    assert decisions(state, 2_700) == [warned(660, 2_040, "release", 3_000)]


def test_a_checkpoint_has_its_own_signal_and_time() -> None:
    state = running("checkpoint", checkpoint_signal=10, checkpoint_grace_s=60, grace_s=5)
    hear(state, seen("a", MINUTE), at_s=60)
    (warning,) = decisions(state, 700)
    assert isinstance(warning, f.JobIdleWarned) and warning.action == "checkpoint"
    assert decisions(state, 1_001) == [stopped(10, 65_000)]


def test_a_job_without_a_checkpoint_has_its_grace_time_to_save() -> None:
    state = running("checkpoint", grace_s=30)
    hear(state, seen("a", MINUTE), at_s=60)
    decisions(state, 700)
    assert decisions(state, 1_001) == [stopped(15, 30_000)]


def test_a_policy_that_only_warns_ends_nothing() -> None:
    state = running("warn")
    hear(state, seen("a", MINUTE), at_s=60)
    assert decisions(state, 700) == [warned(699, 0, "warn", 0)]
    assert decisions(state, 9_000) == []


def test_without_a_policy_nothing_happens() -> None:
    state = running("off")
    hear(state, seen("a", MINUTE), at_s=60)
    assert decisions(state, 90_000) == []


def test_a_policy_that_changed_warns_again() -> None:
    state = running("warn")
    hear(state, seen("a", MINUTE), at_s=60)
    decisions(state, 700)
    hear(state, policy("release"))
    assert decisions(state, 800) == [warned(799, 0, "release", 1_100)]


def test_a_warning_from_before_the_policy_was_set_again_ends_nothing() -> None:
    state = running()
    hear(state, seen("a", MINUTE), at_s=70)
    assert decisions(state, 611) == [warned(601, 10, "release", 911)]
    hear(state, policy("off"), at_s=800)
    hear(state, policy("release", idle_s=1_200), at_s=1_000)
    assert decisions(state, 1_100) == []
    assert decisions(state, 1_211) == [warned(1_201, 10, "release", 1_511, policy_s=1_000)]
    assert decisions(state, 1_512) == [stopped()]


@pytest.mark.parametrize("set_s", [7_210.5, 9_000])
def test_a_job_is_warned_once_under_a_policy_whatever_the_gateway_s_clock(set_s: float) -> None:
    state = running("off")
    hear(state, seen("a", MINUTE), at_s=70)
    hear(state, policy("release"), at_s=set_s)
    now_ns = 7_210 * SECOND_NS + 600_000_000
    (warning,) = end_idle(state, now_ns)
    assert isinstance(warning, f.JobIdleWarned) and warning.idle_s == 7_200
    hear(state, warning, at_s=7_211)
    assert end_idle(state, now_ns) == ()
    assert end_idle(state, now_ns + 300 * SECOND_NS) == (stopped(),)


def test_a_job_that_an_earlier_version_warned_is_warned_again() -> None:
    state = running()
    hear(state, policy("release"), at_s=5)
    hear(state, seen("a", MINUTE), at_s=70)
    hear(state, warned(601, 10, "release", 911), at_s=611)
    assert decisions(state, 912) == [warned(902, 10, "release", 1_212, policy_s=5)]
    assert decisions(state, 1_213) == [stopped()]


def test_a_gang_is_idle_when_all_its_nodes_are() -> None:
    state = running(nodes=("a", "b"))
    hear(state, seen("a", MINUTE), at_s=60)
    assert decisions(state, 900) == []
    hear(state, seen("b", MINUTE), at_s=960)
    assert decisions(state, 1_000) == []
    assert decisions(state, 1_600) == [warned(700, 900, "release", 1_900)]


def test_a_gang_of_which_one_rank_has_ended_is_idle_when_the_others_are() -> None:
    state = running(nodes=("a", "b"))
    hear(state, seen("a", MINUTE), at_s=60)
    hear(state, finished("j", "b", 0), at_s=70)
    assert decisions(state, 650) == [warned(649, 0, "release", 950, ended=1)]
    assert decisions(state, 951) == [stopped()]


def test_a_warning_that_the_end_of_a_member_overtook_is_void() -> None:
    state = running(nodes=("a", "b"))
    hear(state, seen("a", MINUTE), at_s=60)
    hear(state, seen("b", MINUTE), at_s=60)
    (warning,) = decisions(state, 650)
    hear(state, finished("j", "b", 0), at_s=650)
    hear(state, warning, at_s=650)
    assert state.cluster.jobs[J].idle is None


def test_a_replica_and_a_job_that_ends_are_left_alone() -> None:
    state = running()
    hear(state, seen("a", MINUTE), at_s=60)
    hear(state, f.JobStopOrdered(job_id=J, attempt=1, reason="requeued"))
    assert end_idle(state, 9_000 * SECOND_NS) == ()


def test_idle_jobs_are_looked_at_once_a_second() -> None:
    state = running()
    hear(state, seen("a", MINUTE), at_s=60)
    assert end_idle(state, SECOND_NS) == ()
    assert state.idle_look_ns == SECOND_NS + LOOK_EVERY_NS
    state.idle_look_ns = 9_000 * SECOND_NS
    assert end_idle(state, 8_999 * SECOND_NS) == ()


def test_the_end_is_recorded_with_its_reason_and_explained() -> None:
    state = running(retries=3, requeue=True)
    hear(state, seen("a", MINUTE), at_s=60)
    decisions(state, 700)
    assert str(explain(state, J)["answer"]) == (
        "it runs on a and does not wait; all its GPUs have been idle for 11 minutes, and release "
        "follows in 5 minutes"
    )
    decisions(state, 1_001)
    hear(state, finished("j", "a", 143, signal=0, reason="stopped"))
    hear(state, released("j", "a"))
    (closed,) = decisions(state, 1_002)
    assert closed == f.JobClosed(
        job_id=J, attempt=1, outcome="cancelled", reason="idle_gpus", exit_code=143
    )
    assert "idle for longer than its tenant's policy allows" in str(explain(state, J)["answer"])


def test_an_idle_allocation_ends_well() -> None:
    state = running(allocation=Allocation(90_000), requeue=False)
    hear(state, seen("a", MINUTE), at_s=60)
    state.pass_time(120 * SECOND_NS)
    assert str(explain(state, J)["answer"]).endswith("; all its GPUs have been idle for 1 minute")
    decisions(state, 700)
    decisions(state, 1_001)
    hear(state, finished("j", "a", 143, reason="stopped"))
    hear(state, released("j", "a"))
    (closed,) = decisions(state, 1_002)
    assert isinstance(closed, f.JobClosed)
    assert (closed.outcome, closed.reason) == ("completed", "idle_gpus")


def test_a_job_that_ended_well_by_itself_stays_completed() -> None:
    state = running()
    hear(state, seen("a", MINUTE), at_s=60)
    decisions(state, 700)
    decisions(state, 1_001)
    hear(state, finished("j", "a", 0))
    hear(state, released("j", "a"))
    (closed,) = decisions(state, 1_002)
    assert isinstance(closed, f.JobClosed) and closed.outcome == "completed"


@pytest.mark.parametrize("node", ["a", "b"])
def test_reports_of_members_that_do_not_run_change_nothing(node: str) -> None:
    state = running(nodes=("a",))
    hear(state, finished("j", "a", 0))
    hear(state, seen(node, MINUTE), at_s=60)
    assert idle_since_ns(state.cluster.jobs[J]) == 0 and not state.cluster.idle


def test_a_warning_that_a_working_device_overtook_is_void() -> None:
    state = running()
    hear(state, seen("a", MINUTE), at_s=70)
    (warning,) = decisions(state, 611)
    hear(state, seen("a", 0), at_s=600)
    hear(state, warning, at_s=611)
    assert state.cluster.jobs[J].idle is None
    hear(state, f.JobIdleWarned(job_id=JobId("x"), attempt=1, idle_s=1, action="warn", since_ns=1))


def test_a_job_is_looked_at_until_none_of_its_nodes_is_idle() -> None:
    state = running(nodes=("a", "b"))
    hear(state, seen("a", MINUTE), at_s=70)
    hear(state, seen("b", MINUTE), at_s=70)
    hear(state, seen("a", 0), at_s=80)
    assert list(state.cluster.idle) == [J]
    hear(state, seen("b", 0), at_s=80)
    assert not state.cluster.idle
