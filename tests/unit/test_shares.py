"""Memory bounds of a job with a fraction of a device, and the reactions of the agent's core."""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.model import GpuHold, GpuId
from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core import shares
from services.node_agent.core.hangs import APART_NS
from services.node_agent.core.shares import WARN_EVERY_NS, Share, Use
from tests.given_devices import GONE, node, others, recorded
from tests.given_node import GPU, NODE, Node, S, finished, ref, start

GRACE_S = 10
PART = 40
HAS, MORE = Use(40, 40), Use(50, 40)
WHY = f"50 bytes of GPU {GPU} for {GRACE_S} s, its share is 40"


def shared(grace_s: int = GRACE_S, **fields: Any) -> Node:
    made, order = node(share_grace_s=grace_s), start()
    made.orders(
        replace(order, gpus=(GpuHold(GPU, PART),), spec=replace(order.spec, grace_s=7, **fields))
    )
    made.see(o.JobLaunched("j.1"), o.ProcessStarted("j.1", 77))
    return made


def looks(made: Node, use: Use, seconds: int = 1) -> list[a.Action]:
    did = []
    for _ in range(seconds):
        made.now_ns += S
        did += made.see(o.ShareSampled("j.1", {GPU: use}))
    return did


def warned(grace_s: int = GRACE_S) -> f.JobOverShare:
    return f.JobOverShare(
        job_id=ref().job_id,
        attempt=1,
        node_id=NODE,
        uuid=GPU,
        used_bytes=50,
        share_bytes=40,
        grace_s=grace_s,
    )


def test_a_job_over_its_share_is_warned_once_and_then_ended_with_its_grace() -> None:
    made = shared()
    assert looks(made, HAS) == []
    assert recorded(looks(made, MORE, GRACE_S)) == [warned()]
    did = looks(made, MORE)
    assert did == [a.StopJob(ref(), 15, 7_000)]
    made.see(o.ProcessExited("j.1", GONE))
    end = recorded(made.see(o.ReleaseChecked("j.1", {}, True)))[0]
    assert end == finished(exit_code=None, signal=9, reason="over_share", detail=WHY)


def test_job_back_within_its_share_goes_on_and_warnings_are_limited() -> None:
    made = shared()
    assert len(recorded(looks(made, MORE, GRACE_S))) == 1
    assert looks(made, HAS) == [] and looks(made, MORE, GRACE_S) == [] and looks(made, HAS) == []
    made.now_ns += WARN_EVERY_NS
    assert recorded(looks(made, MORE)) == [warned()]


def test_without_a_grace_it_is_only_warned() -> None:
    made = shared(grace_s=0)
    assert recorded(looks(made, MORE, 1_000)) == [warned(0)] and others(looks(made, MORE, 10)) == []


def test_time_without_samples_is_not_counted() -> None:
    made = shared()
    looks(made, MORE)
    made.now_ns += APART_NS + 1
    assert others(looks(made, MORE, GRACE_S)) == []
    assert others(looks(made, MORE)) == [a.StopJob(ref(), 15, 7_000)]


def test_unreported_memory_and_jobs_without_a_share_are_left_alone() -> None:
    made = shared()
    assert made.see(o.ShareSampled("j.1", {})) == []
    whole = node().running()
    assert looks(whole, MORE, 1_000) == []


def test_ending_job_is_neither_warned_nor_ended_again() -> None:
    made = shared()
    looks(made, MORE, GRACE_S)
    made.see(o.ProcessExited("j.1", GONE))
    assert looks(made, MORE, GRACE_S) == []


def test_next_agent_watches_adopted_jobs() -> None:
    made = Node(adopted=(o.Adopted(ref(), gpus=(GPU,), parts={GPU: PART}),))
    made.see(o.ProcessStarted("j.1", 77))
    assert warned(60) in recorded(looks(made, MORE))


@pytest.mark.parametrize(
    ("hold", "parts"),
    [
        (GpuHold(GPU, 100), None),
        (GpuHold(GPU, 30), {GPU: 30}),
        (GpuHold(GPU, 30, "time_slice"), {GPU: 30}),
        (GpuHold(GPU, 30, "mps"), None),
        (GpuHold(uuid=GPU, share=30, isolation="mig", mig_profile="1g.10gb", mig_slices=1), None),
    ],
)
def test_only_plain_parts_are_watched(hold: GpuHold, parts: dict[GpuId, int] | None) -> None:
    assert shares.share_of([hold]) == (None if parts is None else Share(parts))
