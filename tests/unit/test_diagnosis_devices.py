"""The verdict on ranks that wait for their devices."""

from libs.common.diagnosis import evidence as e
from libs.common.diagnosis.evidence import DeviceSeen, Frame
from libs.common.diagnosis.rules import diagnose
from tests.unit.diagnosis_world import LOCKED, code, node, process, two_nodes

DEVICE_WAIT = (Frame("synchronize", "/v/site-packages/torch/cuda/__init__.py", 9), *code("step"))


def test_of_the_only_rank_the_verdict_says_what_it_does_and_how_busy_its_device_is() -> None:
    busy = (DeviceSeen("G-0", busy_percent=100),)
    alone = node(0, process(0, DEVICE_WAIT, gpu="G-0", world=1), devices=busy)
    verdict = diagnose([alone])
    assert (verdict.kind, verdict.suspects) == (e.NONE, ())
    assert verdict.sentence.startswith("The job has one rank: it waits for its device in synchron")
    assert verdict.sentence.endswith("; its device is 100 % busy")
    loads = diagnose([node(0, process(0, code("load"), world=1))])
    assert "its device" not in loads.sentence


def test_ranks_that_wait_for_their_devices_wait_for_the_rank_that_does_not() -> None:
    waiting = [process(rank, DEVICE_WAIT) for rank in range(8) if rank != 3]
    verdict = diagnose(two_nodes(*waiting, process(3, LOCKED)))
    suspect = verdict.suspects[0]
    assert (verdict.kind, verdict.cause, suspect.rank) == (e.APART, "lock", 3)
