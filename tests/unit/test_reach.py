"""The reach of an error: the jobs in one MIG instance, or the jobs that need the links between the
GPUs of a node.
"""

import msgspec
import pytest

from libs.common import facts as f
from libs.common.devices.error_catalogue import Seen
from libs.common.devices.error_rows import catalogue
from libs.common.model import MIG, GpuHold, GpuId
from services.node_agent.core import actions as a
from services.node_agent.core import devices as d
from services.node_agent.core import kept_devices
from services.node_agent.core import observations as o
from services.node_agent.core.devices import Trouble
from tests.given_devices import erred, gpus, node, others, recorded
from tests.given_node import GPU, Node, ref, start

pytestmark = pytest.mark.attack
LOW, HIGH = 0b1111, 0b1111_0000
SECOND = GpuId("GPU-n-1")
FATAL = "sxid 24007"


def running(made: Node, job: str, *holds: GpuHold) -> Node:
    order = msgspec.structs.replace(start(job), gpus=holds)
    assert made.orders(order) == [a.StartJob(order)]
    made.see(o.JobLaunched(f"{job}.1"), o.ProcessStarted(f"{job}.1", 77))
    return made


def part(slices: int, uuid: GpuId = GPU) -> GpuHold:
    return GpuHold(uuid=uuid, share=50, isolation=MIG, mig_profile="3g.40gb", mig_slices=slices)


def of_instance(error: str, slices: int | None) -> o.DeviceErrorSeen:
    return msgspec.structs.replace(erred(error), slices=slices)


def of_switch(kind: str, uuid: GpuId = GPU, error: str = FATAL) -> o.DeviceErrorSeen:
    return o.DeviceErrorSeen(
        uuid,
        Seen(
            vendor="nvidia", model="NVIDIA H100", driver="610", error=error, text="words", kind=kind
        ),
        "kernel_log",
    )


def divided() -> Node:
    return running(running(node(), "low", part(LOW)), "high", part(HIGH))


def stopped(did: list[a.Action]) -> list[a.Action]:
    return [action for action in did if isinstance(action, a.StopJob)]


@pytest.mark.parametrize("error", ["xid 94", "xid 13"])
def test_an_error_that_is_contained_ends_the_job_in_its_instance_and_no_other(error: str) -> None:
    made = divided()
    did = made.see(of_instance(error, 0b11))
    assert others(did) == [a.StopJob(ref("low"), 15, 1_000)]
    (seen,) = recorded(did)
    assert isinstance(seen, f.GpuErrorSeen) and seen.jobs == (ref("low"),)
    assert (
        d.unavailable_reason(made.state.devices, [GPU]) == ""
        and made.state.attempts["high.1"].hit is None
    )


def test_the_same_error_in_another_instance_soon_after_is_news() -> None:
    made = divided()
    made.see(of_instance("xid 94", LOW))
    assert stopped(made.see(of_instance("xid 94", HIGH))) == [a.StopJob(ref("high"), 15, 1_000)]


def test_an_error_of_a_removed_instance_ends_no_job_and_of_an_unknown_one_ends_all() -> None:
    made = divided()
    assert stopped(made.see(of_instance("xid 94", 0))) == []
    made = divided()
    assert len(stopped(made.see(of_instance("xid 94", None)))) == 2


def test_an_error_that_is_not_contained_ends_the_jobs_of_all_instances() -> None:
    assert len(stopped(divided().see(of_instance("xid 95", LOW)))) == 2


def test_a_job_with_the_whole_device_is_hit_by_an_error_that_names_an_instance() -> None:
    assert len(stopped(node().running().see(of_instance("xid 94", LOW)))) == 1


def test_a_fatal_error_of_a_switch_ends_the_jobs_with_several_gpus_and_keeps_new_ones_off() -> None:
    made = running(
        running(node(), "pair", GpuHold(GPU), GpuHold(SECOND)), "one", GpuHold(GpuId("GPU-n-2"))
    )
    did = made.see(*(of_switch("sxid fatal", gpu.uuid) for gpu in gpus(8)))
    assert stopped(did) == [a.StopJob(ref("pair"), 15, 1_000)]
    faults = [fact for fact in recorded(did) if isinstance(fact, f.GpuFaulted)]
    assert [(fact.uuid, fact.health, fact.verdict, fact.alone) for fact in faults] == [
        (gpu.uuid, "degraded", "reboot_node", True) for gpu in gpus(8)
    ]
    made.see(
        o.ProcessExited("pair.1", o.Exit(executed=True, exit_code=None, signal=9, reason="stopped"))
    )
    (finished, _) = recorded(made.see(o.ReleaseChecked("pair.1", {"processes": "gone"}, True)))
    assert isinstance(finished, f.JobFinished)
    assert (finished.reason, finished.detail) == ("gpu_fault", "sxid 24007 of GPU GPU-n-0: words")
    order = msgspec.structs.replace(start("late"), gpus=(GpuHold(GPU), GpuHold(SECOND)))
    (said,) = recorded(made.orders(order))
    assert isinstance(said, f.JobRefused) and said.reason == f"a GPU of it is away: {FATAL}"
    single = start("single")
    assert made.orders(single) == [a.StartJob(single)]


def test_mig_instances_on_several_devices_need_no_switch() -> None:
    made = running(node(), "parts", part(LOW), part(LOW, SECOND))
    assert stopped(made.see(of_switch("sxid fatal"))) == []
    order = msgspec.structs.replace(start("late"), gpus=(part(HIGH), part(HIGH, SECOND)))
    assert made.orders(order) == [a.StartJob(order)]


def test_a_non_fatal_error_of_a_switch_is_recorded_and_nothing_follows() -> None:
    made = running(node(), "pair", GpuHold(GPU), GpuHold(SECOND))
    did = made.see(of_switch("sxid non-fatal", error="sxid 12028"))
    (seen,) = recorded(did)
    assert others(did) == [] and isinstance(seen, f.GpuErrorSeen)
    assert (seen.error, seen.verdict, seen.jobs) == ("sxid 12028", "ignore", (ref("pair"),))
    assert made.state.devices.troubles == {} and made.state.devices.counts == {
        GPU: {"sxid 12028": 1}
    }


def test_a_switch_is_one_cause_for_the_breaker_and_its_devices_still_answer() -> None:
    made = node(count=2)
    made.see(of_switch("sxid fatal"), of_switch("sxid fatal", SECOND))
    assert made.state.devices.repair_ns == {} and not d.needs_reboot_or_replacement(
        made.state.devices, GPU
    )
    d.add_trouble(made.state.devices, GPU, "xid 79", Trouble("offline", verdict="reboot_node"))
    assert (
        d.needs_reboot_or_replacement(made.state.devices, GPU)
        and d.unavailable_reason(made.state.devices, [GPU, SECOND], True) == "xid 79"
    )


def test_a_start_of_the_machine_mends_the_fabric_and_a_new_agent_does_not() -> None:
    made = node(count=2)
    made.see(of_switch("sxid fatal"))
    kept = kept_devices.encode(made.state.devices)
    again, after_boot = (
        d.Devices(d.Policy(catalogue=catalogue())),
        d.Devices(d.Policy(catalogue=catalogue())),
    )
    kept_devices.restore(again, "boot", gpus(2), kept)
    kept_devices.restore(after_boot, "another", gpus(2), kept)
    assert (
        d.unavailable_reason(again, [GPU, SECOND], True) == FATAL
        and d.unavailable_reason(again, [GPU, SECOND]) == ""
    )
    assert d.unavailable_reason(after_boot, [GPU, SECOND], True) == ""


def test_an_error_that_reaches_only_new_work_ends_no_job() -> None:
    made = node().running()
    rows = tuple(msgspec.structs.replace(row, reach="new_work") for row in catalogue().rows)
    made.state.devices.policy = d.Policy(catalogue=msgspec.structs.replace(catalogue(), rows=rows))
    assert stopped(made.see(erred("xid 95"))) == []
    assert d.unavailable_reason(made.state.devices, [GPU]) == "xid 95"


def test_each_recorded_error_is_counted_by_its_name_and_the_names_are_bounded() -> None:
    made = node()
    for number in range(d.COUNTED_MAX + 5):
        made.see(erred(f"xid {1_000 + number}"))
    assert len(made.state.devices.counts[GPU]) == d.COUNTED_MAX
