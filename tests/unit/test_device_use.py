"""The use of an attempt's devices: what samples add up to, and when idle devices are recorded."""

from libs.common import facts as f
from libs.common.facts import DeviceUse
from libs.common.model import GpuId
from services.node_agent.core import actions as a
from services.node_agent.core import device_use as u
from services.node_agent.core import observations as o
from services.node_agent.core import serving
from services.node_agent.core.device_use import IDLE_NOTED_NS, Reading, Use
from tests.given_devices import GONE, recorded
from tests.given_node import GPU, NODE, Node, S, ref

OTHER = GpuId("other")
BUSY = Reading(busy_percent=50, memory_used_bytes=3, memory_bytes=9, power_mw=2_000, simulated=True)
IDLE = Reading(busy_percent=0, power_mw=1_000)


def of(*readings: Reading | None, every_ns: int = S, gpus: tuple[GpuId, ...] = (GPU,)) -> Use:
    use = Use()
    for at, reading in enumerate(readings, 1):
        u.note(use, gpus, {} if reading is None else {GPU: reading}, at * every_ns)
    return use


def test_a_sample_counts_for_the_time_since_the_one_before() -> None:
    assert u.total(of(IDLE, BUSY, BUSY)) == DeviceUse(
        devices=1,
        used=1,
        sampled_ms=2_000,
        busy_ms=1_000,
        peak_percent=50,
        memory_peak_bytes=3,
        memory_bytes=9,
        energy_mj=4_000,
        simulated=True,
    )


def test_one_sample_says_nothing_about_a_time() -> None:
    assert u.total(of(BUSY)) is None is u.total(None)


def test_a_device_that_was_silent_for_long_adds_nothing() -> None:
    use = of(BUSY, BUSY, every_ns=u.APART_NS + 1)
    assert u.total(use) is None and use.devices[GPU].peak_percent == 50
    assert of(IDLE, IDLE, every_ns=u.APART_NS + 1).idle_ns == 0


def test_nothing_is_lost_between_readings_that_are_no_whole_milliseconds_apart() -> None:
    found = u.total(of(*[BUSY] * 11, every_ns=1_500_000))
    assert found is not None and found.sampled_ms == 15


def test_a_counter_of_energy_is_better_than_the_power() -> None:
    def counted(energy_mj: int | None, jobs: int = 1) -> Reading:
        return Reading(busy_percent=9, power_mw=10**9, energy_mj=energy_mj, jobs=jobs)

    found = u.total(of(counted(100), counted(160), counted(200), counted(10)))
    assert found is not None and found.energy_mj == 100
    shared = u.total(of(counted(100), counted(160, 2), None, counted(200)))
    assert shared is not None and (shared.energy_mj, shared.shared) == (70, True)


def test_what_a_driver_does_not_report_is_not_counted() -> None:
    found = of(Reading(), Reading())
    assert u.total(found) is None and found.idle_ns == 0
    only = u.total(of(Reading(busy_percent=9), Reading(busy_percent=9)))
    assert only is not None and (only.energy_mj, only.memory_bytes) == (-1, 0)


def test_devices_are_idle_when_all_of_them_are() -> None:
    use = Use()
    u.note(use, (GPU, OTHER), {GPU: IDLE, OTHER: IDLE}, S)
    assert use.idle_ns == S
    u.note(use, (GPU, OTHER), {GPU: IDLE}, 2 * S)
    assert use.idle_ns == 0
    u.note(use, (GPU, OTHER), {GPU: IDLE, OTHER: BUSY}, 3 * S)
    assert use.idle_ns == 0
    u.note(use, (), {}, 4 * S)
    assert use.idle_ns == 0


def test_idleness_is_told_once_and_so_is_its_end() -> None:
    use = of(IDLE)
    assert u.take_idle(use, S + IDLE_NOTED_NS - 1) is None
    assert u.is_due(use, S + IDLE_NOTED_NS) and u.take_idle(use, S + IDLE_NOTED_NS) == 60_000
    assert not u.is_due(use, 9 * IDLE_NOTED_NS) and u.take_idle(use, 9 * IDLE_NOTED_NS) is None
    u.note(use, (GPU,), {GPU: BUSY}, 2 * S)
    assert u.is_due(use, 2 * S) and u.take_idle(use, 2 * S) == 0
    assert not u.is_due(use, 3 * S) and u.take_idle(use, 3 * S) is None


def test_devices_that_do_not_answer_any_more_are_not_known_to_be_idle() -> None:
    use = of(IDLE)
    assert u.take_idle(use, S + IDLE_NOTED_NS) == 60_000
    u.note(use, (GPU,), {}, 2 * S)
    assert u.take_idle(use, 3 * S) == 0


def test_an_agent_that_adopted_a_job_tells_what_it_sees() -> None:
    use = Use(told=None)
    assert u.take_idle(use, S) is None and not u.is_due(use, S)
    u.note(use, (GPU,), {GPU: BUSY}, S)
    assert u.take_idle(use, S) == 0


def seen(made: Node, reading: Reading, seconds: int = 1) -> list[f.NodeFact]:
    did: list[a.Action] = []
    for _ in range(seconds):
        made.now_ns += S
        did += made.see(o.UseSampled({GPU: reading}))
    return recorded(did)


def idle(idle_ms: int) -> f.JobIdleSeen:
    return f.JobIdleSeen(job_id=ref().job_id, attempt=1, node_id=NODE, idle_ms=idle_ms)


def test_the_agent_records_idle_devices_after_a_minute_and_when_they_work_again() -> None:
    made = Node().running()
    assert seen(made, BUSY, 30) == []
    assert seen(made, IDLE, 60) == []
    assert seen(made, IDLE, 30) == [idle(60_000)]
    assert seen(made, BUSY, 3) == [idle(0)]


def test_the_end_of_a_job_has_the_use_of_its_devices() -> None:
    made = Node().running()
    seen(made, BUSY, 11)
    made.see(o.ProcessExited("j.1", GONE))
    seen(made, BUSY, 5)
    (end, _) = recorded(made.see(o.ReleaseChecked("j.1", {}, True)))
    assert isinstance(end, f.JobFinished) and end.use is not None
    assert (end.use.sampled_ms, end.use.busy_ms) == (10_000, 5_000)


def test_a_job_with_an_instance_gets_no_reading_of_the_whole_card() -> None:
    made = Node().running()
    made.state.attempts["j.1"].slices = {GPU: 1}
    assert seen(made, IDLE, 100) == []
    assert u.total(made.state.attempts["j.1"].use) is None


def test_the_next_agent_goes_on_with_the_sums_of_an_adopted_attempt() -> None:
    made = Node(adopted=(o.Adopted(ref(), gpus=(GPU,)),))
    kept = of(BUSY, BUSY)
    made.see(o.UseSampled({}, kept={"j.1": kept, "gone.1": kept}), o.ProcessStarted("j.1", 77))
    assert seen(made, BUSY, 2) == [idle(0)]
    found = u.total(made.state.attempts["j.1"].use)
    assert found is not None and found.sampled_ms == 2_000
    made.see(o.UseSampled({}, kept={"j.1": of(BUSY, BUSY, BUSY)}))
    assert u.total(made.state.attempts["j.1"].use) == found


def test_a_replica_without_requests_is_not_recorded_as_idle() -> None:
    made = Node().running()
    probe = o.Probe(port=1, path="/", timeout_s=9_999, grace_s=1)
    made.state.attempts["j.1"].health = serving.adopted_health(probe)
    assert seen(made, IDLE, 200) == []
