"""The agent's core: what it does with orders, leases, the desired state and what became of its
jobs.
"""

import msgspec

from libs.common import facts as f
from libs.common.model import JobSpec
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core import state as s
from services.node_agent.core.apply import UNWANTED_GRACE_MS
from services.node_agent.core.attempt_facts import FINISHED_ALONE_NS
from services.node_agent.core.decide import (
    CHECK_AGAIN_NS,
    KILL_AGAIN_NS,
    KILL_SLACK_NS,
    lease_needed_ns,
    next_due_ns,
)
from services.node_agent.devices.attempts import at_work
from tests.given_node import (
    EPOCH,
    GPU,
    INCARNATION,
    NODE,
    Node,
    S,
    T,
    clean,
    finished,
    over,
    ref,
    refused,
    released,
    start,
    started,
    stop,
)


def test_an_order_is_started() -> None:
    assert Node().orders(start()) == [a.StartJob(start())]


def test_an_order_of_an_older_epoch_or_incarnation_or_desired_state_is_not_started() -> None:
    node = Node()
    assert node.orders(start(), epoch=EPOCH - 1) == []
    assert node.orders(start(incarnation=INCARNATION - 1)) == []
    assert node.orders(start(incarnation=INCARNATION + 1)) == []
    assert node.desired(seq=10) == []
    assert node.orders(start(seq=10)) == []
    assert s.accounted(node.state) == []


def test_a_repeated_order_starts_nothing() -> None:
    node = Node()
    node.orders(start())
    assert node.orders(start()) == []
    node.see(o.JobLaunched("j.1"))
    assert node.orders(start()) == []


def test_without_a_lease_an_order_waits() -> None:
    node = Node(leased=False)
    assert node.orders(start()) == []
    node.lease()
    assert node.did() == [a.ReplaceLease(T + 13 * S), a.StartJob(start())]


def test_a_lease_that_ends_too_soon_starts_nothing() -> None:
    node = Node()
    node.now_ns = T + 13 * S - lease_needed_ns(node.state) + 1
    assert node.orders(start()) == []


def test_an_attempt_that_is_over_is_never_started_again() -> None:
    node = Node().running().exited()
    node.see(clean())
    node.see(o.FactsStored(30, (o.Mark("j.1", 3),)))
    assert node.orders(start(), stop(seq=40)) == []
    assert node.desired(start(), seq=29) == []
    assert node.orders(start(seq=60, attempt=2)) == [a.StartJob(start(seq=60, attempt=2))]


def test_attempt_that_cannot_be_launched_is_refused() -> None:
    node = Node()
    node.orders(start())
    assert node.see(o.LaunchFailed("j.1", "no room")) == [over(refused(reason="no room"))]
    assert node.see(o.FactsStored(30, (o.Mark("j.1", 3),))) == []
    assert node.orders(start()) == []


def test_observation_after_the_end_of_an_attempt_changes_nothing() -> None:
    node = Node().running().exited()
    before = msgspec.structs.replace(node.state.attempts["j.1"])
    node.see(
        o.JobLaunched("j.1"),
        o.LaunchFailed("j.1", "late"),
        o.ProcessExited("j.1", o.Exit(True, 9, 0, "late")),
    )
    assert node.state.attempts["j.1"] == before


# Stopping.


def test_a_running_attempt_is_stopped() -> None:
    assert Node().running().orders(stop()) == [a.StopJob(ref(), 15, 10_000)]


def test_an_attempt_that_did_not_begin_is_refused_for_ever() -> None:
    node = Node()
    assert node.orders(stop()) == [over(refused())]
    assert node.orders(start(seq=12)) == []
    node.see(o.FactsStored(30, (o.Mark("j.1", 3),)))
    assert node.orders(start(seq=12)) == []
    assert node.orders(stop()) == []


def test_an_attempt_that_waits_for_a_lease_is_refused_when_it_is_stopped() -> None:
    node = Node(leased=False)
    node.orders(start())
    assert node.orders(stop()) == [over(refused())]


def test_stop_during_a_launch_is_executed_after_the_launch() -> None:
    node = Node()
    node.orders(start())
    assert node.orders(stop()) == []
    assert node.see(o.JobLaunched("j.1")) == [a.StopJob(ref(), 15, 10_000)]


def test_a_repeated_stop_is_quiet_and_a_shorter_one_counts() -> None:
    node = Node().running()
    node.orders(stop())
    assert node.orders(stop()) == []
    assert node.orders(stop(grace_ms=60_000)) == []
    assert node.orders(stop(grace_ms=0, signal=9)) == [a.StopJob(ref(), 9, 0)]


def test_a_stop_that_is_not_obeyed_is_followed_by_kill_again_and_again() -> None:
    node = Node().running()
    node.orders(stop())
    assert node.later(10 * S) == []
    assert node.later(KILL_SLACK_NS) == [a.KillJob(ref())]
    assert node.later(KILL_AGAIN_NS - 1) == []
    assert node.later(1) == [a.KillJob(ref())]


def test_attempt_missing_from_the_desired_state_is_stopped() -> None:
    assert Node().running().desired() == [a.StopJob(ref(), 15, UNWANTED_GRACE_MS)]


def test_attempt_newer_than_the_desired_state_is_left_alone() -> None:
    node = Node().running()
    assert node.desired(seq=9) == []


def test_a_desired_state_of_another_epoch_or_incarnation_or_an_older_one_is_ignored() -> None:
    node = Node().running()
    assert node.desired(epoch=EPOCH - 1) == []
    assert node.desired(incarnation=INCARNATION - 1) == []
    assert node.desired(start(), seq=60) == []
    assert node.desired(seq=59) == []


def test_the_desired_state_repairs_lost_orders() -> None:
    node = Node().running("k")
    assert node.desired(start("j"), start("k"), stops=(stop("k", seq=50),)) == [
        a.StartJob(start("j")),
        a.StopJob(ref("k"), 15, 10_000),
    ]


def test_an_adopted_attempt_of_an_older_incarnation_is_kept_and_stopped_but_never_started() -> None:
    node = Node(leased=False, adopted=(o.Adopted(ref()),))
    assert node.did() == []
    assert node.desired(start(incarnation=INCARNATION - 1)) == []
    assert node.orders(stop(seq=51)) == [a.StopJob(ref(), 15, 10_000)]


# Facts.


def test_an_end_is_recorded_and_released_in_one_commit() -> None:
    node = Node().running().exited()
    assert node.see(clean()) == [over(finished(), released())]
    assert node.see(o.FactsStored(30, (o.Mark("j.1", 3),))) == [a.ForgetJob(ref(), 0, ())]
    assert s.accounted(node.state) == []


def test_an_end_is_recorded_alone_when_the_release_takes_long() -> None:
    node = Node().running().exited()
    assert node.later(FINISHED_ALONE_NS - 1) == []
    assert next_due_ns(node.state) == node.now_ns + 1
    assert node.later(1) == [a.Record((finished(),), (o.Mark("j.1", 2),))]
    assert node.see(clean()) == [over(released())]


def test_nothing_is_forgotten_before_its_last_fact_is_acknowledged() -> None:
    node = Node().running().exited()
    node.see(clean())
    assert node.see(o.FactsStored(30, (o.Mark("j.1", 1),))) == []
    assert node.later(60 * S) == []
    assert s.accounted(node.state) == [ref()]


def test_a_job_that_never_executed_is_not_reported_started() -> None:
    node = Node()
    node.orders(start())
    node.see(o.JobLaunched("j.1"))
    node.exited(exit_=o.Exit(executed=False, exit_code=127, reason="exec_failed"))
    assert node.see(clean()) == [over(finished(exit_code=127, reason="exec_failed"), released())]


def test_all_that_a_directory_tells_is_recorded_again_after_a_restart() -> None:
    node = Node(leased=False, adopted=(o.Adopted(ref(), 0, (GPU,)),))
    said = node.see(
        o.ProcessStarted("j.1", 77),
        o.ProcessExited("j.1", o.Exit(True, None, 0, "supervisor_lost")),
    )
    assert said == [a.CheckRelease(ref(), (GPU,), True, True)]
    assert node.see(clean()) == [
        over(started(), finished(exit_code=None, reason="supervisor_lost"), released())
    ]


def ended_at_once(exit_code: int) -> Node:
    """Return a node whose job has ended before its start was recorded."""
    node = Node()
    node.orders(start())
    end = o.ProcessExited("j.1", o.Exit(True, exit_code, 0, "exited"))
    said = node.see(o.JobLaunched("j.1"), o.ProcessStarted("j.1", 77, T), end)
    assert [type(action) for action in said] == [a.CheckRelease]
    return node


def test_a_job_that_ended_at_once_has_all_its_facts_in_one_commit() -> None:
    node = ended_at_once(0)
    assert node.see(clean()) == [over(started(), finished(), released())]


def test_start_and_end_of_a_short_job_wait_no_longer_for_the_release_check_than_an_end() -> None:
    node = ended_at_once(0)
    assert node.later(FINISHED_ALONE_NS - 1) == []
    assert node.later(1) == [a.Record((started(), finished()), (o.Mark("j.1", 2),))]
    assert node.see(clean()) == [over(released())]


def test_the_start_of_a_short_job_does_not_wait_for_the_devices_of_a_failed_one() -> None:
    node = ended_at_once(1)
    assert next_due_ns(node.state) == node.now_ns + FINISHED_ALONE_NS
    assert node.later(FINISHED_ALONE_NS) == [a.Record((started(),), (o.Mark("j.1", 1),))]
    assert node.see(clean()) == [over(finished(exit_code=1), released())]


def test_several_attempts_facts_go_in_one_commit() -> None:
    node = Node()
    node.orders(start("j"), start("k"))
    (said,) = node.see(o.ProcessStarted("j.1", 77), o.ProcessStarted("k.1", 77))
    assert said == a.Record((started("j"), started("k")), (o.Mark("j.1", 1), o.Mark("k.1", 1)))


def test_an_unclean_device_is_checked_again_and_quarantined_at_the_limit() -> None:
    node = Node().running().exited()
    dirty = o.ReleaseChecked("j.1", {"devices": "held"}, False, {GPU: "pid 5 holds it"})
    node.later(FINISHED_ALONE_NS)
    assert node.see(dirty) == []
    assert node.later(CHECK_AGAIN_NS) == [a.CheckRelease(ref(), (GPU,), True)]
    node.now_ns = T + node.state.release_ns
    fault = f.GpuFaulted(
        node_id=NODE,
        uuid=GPU,
        health="offline",
        reason="quarantined",
        detail="pid 5 holds it",
        source="release",
    )
    kept, said = node.see(dirty)
    assert said == over(fault, released(devices="held")) and isinstance(kept, a.KeepDevices)


def test_a_device_that_became_clean_is_released() -> None:
    node = Node().running().exited()
    node.later(FINISHED_ALONE_NS)
    node.see(o.ReleaseChecked("j.1", {"devices": "held"}, False, {GPU: "pid 5 holds it"}))
    node.later(CHECK_AGAIN_NS)
    assert node.see(clean()) == [over(released())]


# The desired state.


def limited(node: Node) -> None:
    """A job with a limit of 60 s and a grace of 3 s runs."""
    order = msgspec.structs.replace(
        start(), spec=JobSpec(command=("true",), time_limit_s=60, grace_s=3)
    )
    node.orders(order)
    node.see(o.JobLaunched("j.1"), o.ProcessStarted("j.1", 77, T))


def test_a_job_is_stopped_at_its_time_limit_by_its_nodes_own_clock() -> None:
    node = Node()
    limited(node)
    before = s.local_digest(node.state)
    assert node.later(60 * S - 1) == []
    assert next_due_ns(node.state) == T + 60 * S
    assert node.later(1) == [a.StopJob(ref(), 15, 3_000)]
    assert s.local_digest(node.state) == before
    node.exited(exit_=o.Exit(True, None, 15, "stopped", run_ms=60_001))
    ended = finished(exit_code=None, signal=15, reason="time_limit", run_ms=60_001)
    assert node.see(clean()) == [over(ended, released())]


def test_an_agent_that_begins_again_counts_from_when_the_process_began() -> None:
    node = Node(
        leased=False,
        adopted=(o.Adopted(ref=ref(), rank=0, gpus=(GPU,), time_limit_s=60, grace_s=3),),
    )
    node.see(o.ProcessStarted("j.1", 77, T - 59 * S))
    assert node.later(S - 1) == []
    assert node.later(1) == [a.StopJob(ref(), 15, 3_000)]


def test_a_job_that_ends_by_itself_or_by_an_order_did_not_end_at_its_limit() -> None:
    node = Node()
    limited(node)
    assert node.orders(stop()) == [a.StopJob(ref(), 15, 10_000)]
    node.exited(exit_=o.Exit(True, None, 15, "stopped"))
    assert node.see(clean()) == [
        over(finished(exit_code=None, signal=15, reason="stopped"), released())
    ]


def test_the_same_story_gives_the_same_actions() -> None:
    def story() -> list[a.Action]:
        node = Node()
        jobs = [f"j{n}" for n in range(20)]
        said = node.orders(*(start(job) for job in jobs))
        said += node.see(
            *(o.JobLaunched(f"{job}.1") for job in jobs),
            *(o.ProcessStarted(f"{job}.1", 77) for job in jobs),
        )
        said += node.desired(*(start(job) for job in jobs[::3]))
        return said + node.see(
            *(o.ProcessExited(f"{job}.1", o.Exit(True, 0)) for job in reversed(jobs))
        )

    assert story() == story()


def test_work_on_a_device_is_the_first_process_of_each_running_job() -> None:
    node = Node()
    node.orders(start())
    assert at_work(node.state) == {}
    node.see(o.JobLaunched("j.1"))
    node.see(o.ProcessStarted("j.1", 4711))
    assert [
        (uuid, [each.pid for each in found]) for uuid, found in at_work(node.state).items()
    ] == [(GPU, [4711])]
    node.exited()
    assert at_work(node.state) == {}


# Wanted.


def test_an_attempt_that_is_being_prepared_is_wanted_until_it_is_stopped_or_the_node_is_lost() -> (
    None
):
    node = Node()
    assert not s.is_wanted(node.state, "j.1")
    node.orders(start())
    assert s.is_wanted(node.state, "j.1")
    node.orders(stop())
    assert not s.is_wanted(node.state, "j.1")
    lost = Node()
    lost.orders(start())
    lost.lease(verdict="lost")
    assert not s.is_wanted(lost.state, "j.1")
