"""The agent's core and the lease: what an answer extends, what it replaces, and which term a
heartbeat may name.
"""

from services.node_agent.core import actions as a
from services.node_agent.core import state as s
from tests.given_node import EPOCH, INCARNATION, Node, S, T


def test_a_lease_counts_from_when_the_heartbeat_was_sent_and_is_never_shortened() -> None:
    node = Node()
    node.now_ns += 4 * S
    node.lease(sent_boot_ns=T + 3 * S)
    assert node.did() == [a.ExtendLease(T + 16 * S)]
    node.lease(sent_boot_ns=T + 2 * S)
    assert node.did() == []


def test_a_newer_term_replaces_the_long_lease_of_a_planned_stop_before_a_heartbeat_names_it() -> (
    None
):
    node = Node()
    node.lease(lease_ms=600_000)
    assert node.did() == [a.ExtendLease(T + 600 * S)]
    node.now_ns += S
    node.lease(epoch=EPOCH + 1)
    assert node.state.lease_written_epoch == EPOCH
    assert node.did() == [a.ReplaceLease(T + 14 * S)]
    assert node.state.lease_written_epoch == EPOCH + 1
    node.lease(epoch=EPOCH, lease_ms=600_000)
    node.lease(epoch=EPOCH + 1, sent_boot_ns=T)
    assert node.did() == []


def test_two_leases_of_a_newer_term_that_come_together_are_one_replacement() -> None:
    node = Node()
    node.lease(lease_ms=600_000)
    node.did()
    node.lease(epoch=EPOCH + 1)
    node.lease(epoch=EPOCH + 1, sent_boot_ns=T + S)
    assert node.did() == [a.ReplaceLease(T + 14 * S)]


def test_an_agent_that_began_again_names_no_term_before_it_has_written_its_lease() -> None:
    node = Node(leased=False)
    node.lease(lease_ms=0)
    node.orders(epoch=EPOCH)
    assert node.did() == [] and node.state.lease_written_epoch == 0
    node.lease()
    assert node.did() == [a.ReplaceLease(T + 13 * S)]
    again = s.begin(node.state.node_id, INCARNATION + 1, (), node.state)
    assert again.lease_written_epoch == EPOCH


def test_an_answer_of_another_term_or_incarnation_or_without_a_grant_extends_nothing() -> None:
    node = Node()
    node.now_ns += S
    node.lease(epoch=EPOCH - 1)
    node.lease(incarnation=INCARNATION - 1)
    node.lease(lease_ms=0)
    node.lease(verdict="unknown")
    assert node.did() == []
