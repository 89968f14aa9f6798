"""When a job hangs, and what follows of it in the agent's core."""

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.devices.error_catalogue import Seen
from libs.common.model import GpuId
from services.node_agent.core import actions as a
from services.node_agent.core import hangs
from services.node_agent.core import observations as o
from tests.given_devices import GONE, left, node, others, recorded
from tests.given_node import GPU, NODE, Node, S, finished, ref, start

TIMEOUT_S = 30
WHERE = "the evidence is in evidence-j.1.json on its node"
DETAIL = f"no progress for {TIMEOUT_S} s while its GPUs were busy; {WHERE}"
SAVE = a.SaveEvidence(ref(), (GPU,), "no progress for 30 s")


def watched(**policy: bool) -> Node:
    made, order = node(**policy), start()
    made.orders(replace(order, spec=replace(order.spec, hang_timeout_s=TIMEOUT_S)))
    made.see(o.JobLaunched("j.1"), o.ProcessStarted("j.1", 77))
    return made


def look(made: Node, busy: bool = True, sign: int = 1) -> list[a.Action]:
    return made.see(o.ProgressSampled("j.1", busy, (sign,)))


def looks(made: Node, seconds: int, sign: int = 1) -> list[a.Action]:
    """One in each second."""
    did = []
    for _ in range(seconds):
        made.now_ns += S
        did += look(made, sign=sign)
    return did


def seen(shadow: bool = False) -> f.GpuErrorSeen:
    told = {
        "error": "no_progress",
        "verdict": "drain_then_reset",
        "source": "watchdog",
        "detail": DETAIL,
    }
    return f.GpuErrorSeen(node_id=NODE, uuid=GPU, jobs=(ref(),), shadow=shadow, **told)  # type: ignore[arg-type]


def fault(
    health: str = "offline",
    reason: str = "no_progress",
    detail: str = DETAIL,
    source: str = "watchdog",
) -> f.GpuFaulted:
    verdict = "drain_then_reset"
    return f.GpuFaulted(
        node_id=NODE,
        uuid=GPU,
        health=health,
        reason=reason,
        detail=detail,
        verdict=verdict,
        source=source,
    )


def hung(made: Node) -> list[a.Action]:
    look(made)
    assert looks(made, TIMEOUT_S) == [SAVE]
    return made.see(o.EvidenceSaved("j.1", WHERE))


def test_a_hung_job_ends_after_its_evidence_is_saved_and_its_device_is_reset() -> None:
    made = watched()
    did = hung(made)
    assert others(did) == [a.StopJob(ref(), 15, 1_000)]
    assert recorded(did) == [seen(), fault()]
    made.see(o.ProcessExited("j.1", GONE))
    end = recorded(made.see(o.ReleaseChecked("j.1", {"processes": "gone"}, True)))[0]
    assert end == finished(exit_code=None, signal=9, reason="hung", detail=DETAIL)
    assert a.ResetDevice(GPU, "no_progress") in left(made)
    back = made.see(o.DeviceReset(GPU, "", {"reset": "done"}))
    assert recorded(back) == [f.GpuRecovered(node_id=NODE, uuid=GPU, checks={"reset": "done"})]


def test_any_sign_and_any_rest_of_its_devices_begins_the_time_anew() -> None:
    made = watched()
    look(made)
    assert looks(made, TIMEOUT_S - 1) == [] and looks(made, 1, sign=2) == []
    assert looks(made, TIMEOUT_S - 1, sign=2) == [] and look(made, busy=False, sign=2) == []
    assert looks(made, TIMEOUT_S, sign=2) == []
    assert looks(made, 1, sign=2) == [SAVE]


def test_time_without_samples_is_not_counted() -> None:
    made = watched()
    look(made)
    made.now_ns += hangs.APART_NS + 1
    assert look(made) == [] and looks(made, TIMEOUT_S - 1) == []
    assert looks(made, 1) == [SAVE]


def test_a_job_that_moves_on_while_its_evidence_is_saved_goes_on_and_is_watched_on() -> None:
    made = watched()
    look(made)
    looks(made, TIMEOUT_S)
    look(made, sign=2)
    assert made.see(o.EvidenceSaved("j.1", WHERE)) == []
    assert looks(made, TIMEOUT_S, sign=2) == [SAVE]


def test_a_job_that_ends_while_its_evidence_is_saved_did_not_hang_and_its_device_stays() -> None:
    made = watched()
    look(made)
    looks(made, TIMEOUT_S)
    made.see(o.ProcessExited("j.1", o.Exit(executed=True, exit_code=0)))
    assert (
        recorded(made.see(o.EvidenceSaved("j.1", WHERE))) == []
        and made.state.devices.troubles == {}
    )
    end = recorded(made.see(o.ReleaseChecked("j.1", {"processes": "gone"}, True)))[0]
    assert end == finished()


def test_job_without_a_hang_timeout_or_already_ending_is_not_watched() -> None:
    made = node().running()
    assert looks(made, 1_000) == [] and made.see(o.EvidenceSaved("j.1", WHERE)) == []
    assert made.see(o.EvidenceSaved("k.1", WHERE), o.ProgressSampled("k.1", True, ())) == []
    ending = watched()
    look(ending)
    ending.see(o.DeviceErrorSeen(GPU, hit_by("xid 31"), "driver"))
    assert SAVE not in looks(ending, TIMEOUT_S)


def hit_by(error: str) -> Seen:
    return Seen("nvidia", "NVIDIA H100", "610", error)


def test_next_agent_watches_adopted_jobs() -> None:
    made = Node(adopted=(o.Adopted(ref(), gpus=(GPU,), hang_timeout_s=TIMEOUT_S),))
    made.see(o.ProcessStarted("j.1", 77))
    look(made)
    assert looks(made, TIMEOUT_S) == [SAVE]


def test_in_the_shadow_the_job_ends_for_it_asked_and_the_device_stays() -> None:
    made = watched(shadow=True)
    did = hung(made)
    assert (others(did), recorded(did)) == ([a.StopJob(ref(), 15, 1_000)], [seen(shadow=True)])
    assert made.state.devices.troubles == {}


def test_a_device_without_a_reset_on_which_only_a_job_hung_is_used_on_and_another_one_is_not() -> (
    None
):
    for error, well in (("", True), ("xid 46", False)):
        made = watched()
        hung(made)
        if error:
            made.see(o.DeviceErrorSeen(GPU, hit_by(error), "driver"))
        made.see(o.ProcessExited("j.1", GONE), o.ReleaseChecked("j.1", {}, True))
        left(made)
        said = recorded(
            made.see(o.DeviceReset(GPU, "it cannot be reset: no tool", refused="lacking"))
        )
        back = f.GpuRecovered(
            node_id=NODE, uuid=GPU, checks={"reset": "not done: it cannot be reset: no tool"}
        )
        assert (said == [back]) is well
        assert (GpuId(GPU) in made.state.devices.troubles) is not well
