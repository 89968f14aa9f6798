"""Consequences of a device's error in the agent's core.

The tests compare the job's end and its reason, the recorded facts, and the time of a reset.
"""

import msgspec
import pytest

from libs.common import facts as f
from libs.common.messages import StopOrder
from libs.common.model import GpuHold
from services.node_agent.core import actions as a
from services.node_agent.core import devices as d
from services.node_agent.core import hits, kept_devices
from services.node_agent.core import observations as o
from services.node_agent.core.attempt_facts import UNCHECKED_NS
from services.node_agent.core.decide import next_due_ns
from services.node_agent.core.devices import SAME_NS, Trouble
from tests.given_devices import (
    GONE,
    OTHER,
    ended,
    erred,
    fault,
    gpus,
    left,
    node,
    others,
    recorded,
    resetting,
    seen,
)
from tests.given_node import GPU, NODE, Node, S, ref, refused, start


def test_an_error_of_the_application_ends_its_job_and_leaves_the_device() -> None:
    made = node().running()
    did = made.see(erred("xid 31"))
    assert others(did) == [a.StopJob(ref(), 15, 1_000)]
    assert recorded(did) == [seen("xid 31", "restart_job", "j")]
    finished, released = ended(made)
    assert isinstance(finished, f.JobFinished) and isinstance(released, f.JobReleased)
    assert (finished.reason, finished.detail) == ("gpu_error", "xid 31 of GPU GPU-n-0: words")
    assert made.see(o.FactsStored(30, (o.Mark("j.1", 3),))) == [a.ForgetJob(ref(), 0)]


def test_a_job_that_ended_well_although_its_device_erred_ended_well() -> None:
    made = node().running()
    made.see(erred("xid 94"))
    finished, _ = ended(made, end=o.Exit(executed=True, exit_code=0))
    assert isinstance(finished, f.JobFinished) and finished.reason == "exited"


def test_a_job_that_was_cancelled_ends_as_stopped_although_its_device_erred_before() -> None:
    made = node().running()
    made.see(erred("xid 48"))
    made.orders(
        StopOrder(
            job_id=ref().job_id, attempt=1, seq=40, reason="cancelled", signal=15, grace_ms=1_000
        )
    )
    finished = ended(made)[0]
    assert isinstance(finished, f.JobFinished) and finished.reason == "stopped"
    assert finished.detail.startswith("xid 48 of GPU")
    assert made.state.devices.troubles[GPU].keys() >= {"xid 48"}


def test_a_hardware_error_ends_the_job_and_the_device_is_reset_when_it_is_free() -> None:
    made = node().running()
    did = made.see(erred("xid 95"))
    assert others(did) == [a.StopJob(ref(), 15, 1_000)]
    assert recorded(did) == [seen("xid 95", "reset", "j"), fault("xid 95", "reset")]
    finished = ended(made)[0]
    assert isinstance(finished, f.JobFinished) and finished.reason == "gpu_fault"
    assert others(made.did()) == []
    did = left(made)
    assert others(did) == [a.ResetDevice(GPU, "xid 95"), a.ForgetJob(ref(), 0)]
    assert recorded(did) == [resetting("reset")]
    assert recorded(made.see(o.DeviceReset(GPU, "", {"driver": "answers"}))) == [
        f.GpuRecovered(node_id=NODE, uuid=GPU, checks={"driver": "answers"})
    ]
    assert made.did() == [] and made.state.devices.troubles == {}


def test_a_device_that_is_no_better_after_its_reset_waits_for_its_machine() -> None:
    made = node()
    assert others(made.see(erred("xid 46"))) == [a.ResetDevice(GPU, "xid 46")]
    failed = fault("reset_failed", "reboot_node", detail="it does not answer", source="reset")
    assert recorded(made.see(o.DeviceReset(GPU, "it does not answer"))) == [failed]
    assert made.did() == []


def test_a_device_that_drains_lets_its_job_go_on_and_takes_no_other() -> None:
    made = node().running()
    did = made.see(erred("xid 48"))
    assert others(did) == []
    assert recorded(did) == [
        seen("xid 48", "drain_then_reset", "j"),
        fault("xid 48", "drain_then_reset"),
    ]
    assert recorded(made.orders(start("k", seq=60))) == [
        refused("k", "a GPU of it is away: xid 48")
    ]
    finished = ended(made, end=o.Exit(executed=True, exit_code=1))[0]
    assert isinstance(finished, f.JobFinished) and finished.reason == "gpu_fault"
    assert a.ResetDevice(GPU, "xid 48") in left(made)


def test_a_device_that_only_ails_a_little_takes_work_and_a_hot_one_does_not_until_it_is_cool() -> (
    None
):
    made = node()
    ails = Trouble("degraded", "links", source="driver")
    assert recorded(made.see(o.DeviceTroubleChanged(GPU, "links", ails))) == [
        fault("links", "", "degraded", detail="links")
    ]
    assert others(made.orders(start())) == [a.StartJob(start())]
    hot = Trouble("offline", "90 C", source="driver")
    assert recorded(made.see(o.DeviceTroubleChanged(GPU, "thermal", hot))) == [
        fault("thermal", "", detail="90 C")
    ]
    assert recorded(made.orders(start("k", seq=60))) == [
        refused("k", "a GPU of it is away: thermal")
    ]
    assert recorded(made.see(o.DeviceTroubleChanged(GPU, "thermal", None))) == [
        fault("links", "", "degraded", detail="links")
    ]
    assert recorded(made.see(o.DeviceTroubleChanged(GPU, "links", None))) == [
        f.GpuRecovered(node_id=NODE, uuid=GPU)
    ]
    assert made.see(o.DeviceTroubleChanged(GPU, "links", None)) == []


def test_a_fault_that_two_sources_tell_counts_once_and_a_flood_of_it_too() -> None:
    made = node()
    assert recorded(made.see(erred("xid 31"))) == [seen("xid 31", "restart_job")]
    assert made.see(erred("xid 31", source="kernel_log")) == []
    for _ in range(5):
        assert made.later(SAME_NS - 1) == []
        assert made.see(erred("xid 31")) == []
    made.later(SAME_NS)
    assert recorded(made.see(erred("xid 31"))) == [seen("xid 31", "restart_job")]


def test_the_same_error_of_another_job_s_time_is_another_one() -> None:
    made = node().running()
    made.see(erred("xid 31"))
    ended(made)
    left(made)
    made.running("k")
    did = made.see(erred("xid 31"))
    assert (others(did), recorded(did)) == (
        [a.StopJob(ref("k"), 15, 1_000)],
        [seen("xid 31", "restart_job", "k")],
    )


def test_of_two_errors_the_harder_verdict_stands() -> None:
    made = node()
    assert recorded(made.see(erred("xid 79"))) == [
        seen("xid 79", "reboot_node"),
        fault("xid 79", "reboot_node"),
    ]
    assert recorded(made.see(erred("xid 46"))) == [seen("xid 46", "reset")]
    assert made.did() == []


def test_an_error_that_means_nothing_is_on_the_record_and_nothing_follows() -> None:
    made = node().running()
    did = made.see(erred("xid 63"))
    assert (others(did), recorded(did)) == ([], [seen("xid 63", "ignore", "j")])
    finished = ended(made, end=o.Exit(executed=True, exit_code=1))[0]
    assert isinstance(finished, f.JobFinished) and finished.reason == "exited"


def test_shadow_mode_records_errors_without_consequences() -> None:
    made = node(shadow=True).running()
    did = made.see(erred("xid 95"))
    assert (others(did), recorded(did)) == ([], [seen("xid 95", "reset", "j", shadow=True)])
    assert others(made.orders(start("k", seq=60))) == [a.StartJob(start("k", seq=60))]


def test_an_application_error_on_a_shared_device_ends_only_the_job_of_that_process() -> None:
    made = node().running().running("k")
    assert others(made.see(erred("xid 31"))) == []
    did = made.see(erred("xid 31", source="kernel_log", key="k.1"))
    assert others(did) == [a.StopJob(ref("k"), 15, 1_000)]
    assert recorded(did) == [seen("xid 31", "restart_job", "k", source="kernel_log")]
    assert others(made.see(erred("xid 95", key="k.1"))) == [a.StopJob(ref(), 15, 1_000)]
    assert [
        made.state.attempts[key].hit.reason
        for key in ("j.1", "k.1")
        if made.state.attempts[key].hit
    ] == ["gpu_fault"] * 2  # type: ignore[union-attr]


def test_hardware_error_outranks_an_application_error_in_any_order() -> None:
    made = node().running()
    for error in ("xid 31", "xid 94", "xid 13"):
        made.see(erred(error))
    hit = made.state.attempts["j.1"].hit
    assert hit == hits.Hit("gpu_fault", "xid 94 of GPU GPU-n-0: words")


def test_end_of_a_failed_job_waits_for_the_first_check_of_its_devices() -> None:
    made = node().running()
    bad = o.Exit(executed=True, exit_code=1)
    assert made.see(o.ProcessExited("j.1", bad)) == [a.CheckRelease(ref(), (GPU,), True, True)]
    exited_ns = made.now_ns
    assert made.later(S) == [] and next_due_ns(made.state) == exited_ns + UNCHECKED_NS
    made.see(erred("xid 79"))
    finished = recorded(made.see(o.ReleaseChecked("j.1", {}, True)))[0]
    assert isinstance(finished, f.JobFinished) and finished.reason == "gpu_fault"


@pytest.mark.parametrize(
    ("count", "percent", "resets"), [(1, 50, 1), (4, 50, 2), (8, 50, 4), (8, 25, 2), (8, 1, 1)]
)
def test_the_breaker_stops_resets_when_too_many_devices_need_one_and_closes_again(
    count: int, percent: int, resets: int
) -> None:
    made = node(count, breaker_percent=percent)
    did = [action for gpu in gpus(count) for action in others(made.see(erred("xid 46", gpu.uuid)))]
    assert len(did) == min(count, resets)
    if count > resets:
        due_ns = next_due_ns(made.state)
        assert due_ns is not None and others(made.later(due_ns - made.now_ns - 1)) == []
        assert len(others(made.later(1))) == count - resets
    assert next_due_ns(made.state) is None


def test_next_agent_restores_troubles_and_records_them_again() -> None:
    made = node()
    (kept,) = [action for action in made.see(erred("xid 79")) if isinstance(action, a.KeepDevices)]
    again = Node()
    kept_devices.restore(again.state.devices, "boot", gpus(8), kept.data)
    assert recorded(again.did()) == [fault("xid 79", "reboot_node")]
    assert again.did() == []


def test_the_next_agent_says_again_that_a_device_is_well_for_the_log_may_not_have_heard_it() -> (
    None
):
    made = node()
    made.see(o.DeviceTroubleChanged(GPU, "thermal", Trouble("offline", "hot")))
    made.see(o.DeviceTroubleChanged(GPU, "thermal", None))
    again = Node()
    kept_devices.restore(
        again.state.devices, "boot", gpus(8), kept_devices.encode(made.state.devices)
    )
    assert recorded(again.did()) == [f.GpuRecovered(node_id=NODE, uuid=GPU)]
    assert again.did() == []


def test_a_well_device_that_the_driver_no_longer_shows_is_not_recorded_as_recovered() -> None:
    made = node()
    made.see(o.DeviceTroubleChanged(GPU, "thermal", Trouble("offline", "hot")))
    again = Node()
    kept_devices.restore(
        again.state.devices, "boot", gpus(8)[1:], kept_devices.encode(made.state.devices)
    )
    assert recorded(again.did()) == []


def test_a_recovery_is_recorded_with_the_checks_that_proved_it() -> None:
    made = node()
    made.see(o.DeviceTroubleChanged(GPU, "quarantined", Trouble("offline", "pid 5 holds it")))
    checks = {"processes": "none"}
    assert recorded(made.see(o.DeviceTroubleChanged(GPU, "quarantined", None, checks))) == [
        f.GpuRecovered(node_id=NODE, uuid=GPU, checks=checks)
    ]


def test_a_machine_that_was_started_again_has_its_devices_back_if_they_answer() -> None:
    made = node()
    made.see(erred("xid 79"))
    made.see(erred("xid 54", OTHER))
    made.see(o.DeviceTroubleChanged(OTHER, "thermal", Trouble("offline", "hot")))
    data = kept_devices.encode(made.state.devices)
    again = Node()
    kept_devices.restore(again.state.devices, "another boot", gpus(8), data)
    back = f.GpuRecovered(node_id=NODE, uuid=GPU, checks={"boot": "another", "driver": "answers"})
    assert recorded(again.did()) == [back, fault("xid 54", "replace", uuid=OTHER)]
    missing = Node()
    kept_devices.restore(missing.state.devices, "another boot", gpus(8)[1:], data)
    assert recorded(missing.did())[0] == fault("xid 79", "reboot_node")


def test_a_reset_that_an_agent_did_not_finish_is_repeated_by_the_next_one() -> None:
    made = node()
    made.see(erred("xid 46"))
    made.see(o.DeviceTroubleChanged(OTHER, "thermal", Trouble("offline", "hot")))
    again = Node()
    kept_devices.restore(
        again.state.devices, "boot", gpus(8), kept_devices.encode(made.state.devices)
    )
    did = again.did()
    assert others(did) == [a.ResetDevice(GPU, "xid 46")]
    assert recorded(did) == [f.GpuRecovered(node_id=NODE, uuid=OTHER), resetting("reset")][::-1]


def test_a_device_that_is_not_clean_is_quarantined_and_keeps_it_until_that_is_over() -> None:
    made = node().running()
    made.see(o.ProcessExited("j.1", o.Exit(executed=True, exit_code=0)))
    made.now_ns += made.state.release_ns
    said = recorded(made.see(o.ReleaseChecked("j.1", {}, False, {GPU: "pid 5 holds it"})))
    assert said[0] == fault("quarantined", "", detail="pid 5 holds it", source="release")
    data = kept_devices.encode(made.state.devices)
    again = Node()
    kept_devices.restore(again.state.devices, "boot", gpus(8), data)
    assert recorded(again.did()) == [said[0]]
    assert d.quarantined(again.state.devices) == [GPU]
    assert recorded(again.see(o.DeviceTroubleChanged(GPU, "quarantined", None))) == [
        f.GpuRecovered(node_id=NODE, uuid=GPU)
    ]
    assert d.quarantined(again.state.devices) == []


def test_a_job_on_a_lost_device_ends_without_waiting_for_a_clean_device() -> None:
    for error, processes, over in (
        ("xid 79", "gone", True),
        ("xid 79", "left: 5 sh", False),
        ("xid 95", "gone", False),
    ):
        made = node().running()
        made.see(erred(error))
        made.see(o.ProcessExited("j.1", GONE))
        said = recorded(
            made.see(
                o.ReleaseChecked(
                    "j.1", {"processes": processes}, False, {GPU: "the device is lost"}
                )
            )
        )
        assert [type(fact) for fact in said] == ([f.JobFinished, f.JobReleased] if over else [])
        if over:
            assert recorded(made.did()) == []
            assert d.quarantined(made.state.devices) == [GPU]


def test_the_order_of_two_jobs_on_two_devices_is_kept_apart() -> None:
    made = node()
    other = msgspec.structs.replace(start("k"), gpus=(GpuHold(OTHER),))
    made.running()
    made.orders(other)
    made.see(o.JobLaunched("k.1"), o.ProcessStarted("k.1", 78))
    assert others(made.see(erred("xid 13", OTHER))) == [a.StopJob(ref("k"), 15, 1_000)]


def test_reset_clears_only_the_troubles_that_it_mends() -> None:
    made = node()
    made.see(erred("xid 46"))
    made.see(o.DeviceTroubleChanged(GPU, "thermal", Trouble("offline", "hot")))
    made.see(erred("xid 79"))
    said = recorded(made.see(o.DeviceReset(GPU, "", {"reset": "done"})))
    assert said == [fault("xid 79", "reboot_node")]
    assert list(made.state.devices.troubles[GPU]) == ["thermal", "xid 79"]
    mild = node()
    mild.see(o.DeviceTroubleChanged(GPU, "thermal", Trouble("offline", "hot")))
    mild.see(erred("xid 46"))
    assert recorded(mild.see(o.DeviceReset(GPU, "", {"reset": "done"}))) == [
        fault("thermal", "", detail="hot", source="")
    ]
    back = f.GpuRecovered(node_id=NODE, uuid=GPU, checks={"reset": "done"})
    assert recorded(mild.see(o.DeviceTroubleChanged(GPU, "thermal", None))) == [back]


def test_death_of_the_mps_daemon_ends_the_job_as_a_machine_fault() -> None:
    made = node().running()
    assert others(made.see(o.ShareLost("j.1", "the MPS daemon 7 died"))) == [
        a.StopJob(ref(), 15, 1_000)
    ]
    finished, _ = ended(made)
    assert isinstance(finished, f.JobFinished)
    assert (finished.reason, finished.detail) == ("mps_lost", "the MPS daemon 7 died")


def test_a_daemon_that_died_under_a_job_that_is_over_changes_nothing() -> None:
    made = node().running()
    ended(made)
    left(made)
    assert made.see(o.ShareLost("j.1", "the MPS daemon 7 died")) == []


def test_the_record_of_a_start_says_how_its_part_is_kept_apart() -> None:
    made = node()
    made.orders(start())
    (started,) = recorded(made.see(o.JobLaunched("j.1"), o.ProcessStarted("j.1", 77, 1, "cu_mask")))
    assert started == f.JobStarted(
        job_id=ref().job_id, attempt=1, node_id=NODE, pid=77, isolation="cu_mask"
    )
