"""Nodes that failed a fetch are avoided for a while, longer each time."""

from libs.common.model import NodeId
from services.node_agent.resident.avoided import FIRST_S, KNOWN_MAX, LONGEST_S, Avoided

A, B = NodeId("a"), NodeId("b")


def test_a_node_is_avoided_for_its_request_only_and_not_for_ever() -> None:
    avoided = Avoided()
    avoided.note(7, A, 100.0)
    avoided.note(8, B, 100.0)
    assert avoided.nodes(7, 100.0) == (A,) and avoided.nodes(8, 100.0) == (B,)
    assert avoided.nodes(7, 100.0 + FIRST_S) == ()


def test_each_failure_doubles_the_time_up_to_a_bound() -> None:
    avoided = Avoided()
    for _ in range(2):
        avoided.note(7, A, 0.0)
    assert avoided.nodes(7, 2 * FIRST_S - 1) == (A,) and avoided.nodes(7, 2 * FIRST_S) == ()
    for _ in range(100):
        avoided.note(7, A, 0.0)
    assert avoided.nodes(7, LONGEST_S - 1) == (A,) and avoided.nodes(7, LONGEST_S) == ()


def test_the_oldest_failures_are_forgotten_first() -> None:
    avoided = Avoided()
    for number in range(KNOWN_MAX + 1):
        avoided.note(number, A, 0.0)
    assert avoided.nodes(0, 0.0) == () and avoided.nodes(1, 0.0) == (A,)
