"""A release check that gives no result does not hold the devices for ever."""

from libs.common import facts as f
from services.node_agent.core import actions as a
from services.node_agent.core.attempt_facts import FINISHED_ALONE_NS, UNCHECKED, UNCHECKED_NS
from services.node_agent.core.decide import next_due_ns
from tests.given_node import GPU, NODE, Node, T, clean, over, released


def test_a_release_check_that_never_ends_is_given_up_and_its_devices_are_quarantined() -> None:
    node = Node().running().exited()
    node.later(FINISHED_ALONE_NS)
    assert next_due_ns(node.state) == T + UNCHECKED_NS
    assert node.later(UNCHECKED_NS - FINISHED_ALONE_NS - 1) == []
    fault = f.GpuFaulted(
        node_id=NODE,
        uuid=GPU,
        health="offline",
        reason="quarantined",
        detail=UNCHECKED,
        source="release",
    )
    assert over(fault, released(processes=UNCHECKED)) in node.later(1)
    assert not [each for each in node.see(clean()) if isinstance(each, a.Record)]
