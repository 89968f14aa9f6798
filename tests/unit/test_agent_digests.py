"""Digests in the agent's core: a difference makes the agent ask for its desired state."""

from services.node_agent.core import actions as a
from services.node_agent.core import observations as o
from services.node_agent.core import state as s
from services.node_agent.core.apply import ASK_AFTER_NS, ASK_JITTER_NS, UNWANTED_GRACE_MS
from services.node_agent.core.decide import (
    ASK_EVERY_NS,
)
from tests.given_node import (
    Node,
    S,
    clean,
    ref,
    start,
    stop,
)


def test_a_difference_of_digests_is_asked_about_once_in_a_while() -> None:
    node = Node()
    node.lease(digest="other", lease_ms=0)
    assert node.did() == []
    assert node.later(ASK_AFTER_NS + ASK_JITTER_NS) == [a.AskDesired()]
    node.lease(digest="other", lease_ms=0)
    assert node.later(ASK_AFTER_NS + ASK_JITTER_NS) == []
    assert node.later(ASK_EVERY_NS) == [a.AskDesired()]


def test_a_difference_that_repairs_itself_is_not_asked_about() -> None:
    there = Node()
    there.orders(start())
    node = Node()
    node.lease(digest=s.local_digest(there.state))
    node.orders(start())
    assert node.later(ASK_AFTER_NS + ASK_JITTER_NS) == []


def test_a_shorter_stop_that_was_lost_is_repaired_by_the_digest() -> None:
    there, here = Node().running(), Node().running()
    for node in (there, here):
        assert node.orders(stop(grace_ms=60_000)) == [a.StopJob(ref(), 15, 60_000)]
    there.orders(stop(seq=12, grace_ms=0, signal=9))
    here.lease(digest=s.local_digest(there.state), lease_ms=0)
    assert here.later(ASK_AFTER_NS + ASK_JITTER_NS) == [a.AskDesired()]
    assert here.desired(start(), stops=(stop(seq=50, grace_ms=0, signal=9),)) == [
        a.StopJob(ref(), 9, 0)
    ]
    assert s.local_digest(here.state) == s.local_digest(there.state)


def test_a_longer_stop_after_a_shorter_one_counts_at_neither_end() -> None:
    node = Node().running()
    node.orders(stop(grace_ms=1_000, signal=15))
    before = s.local_digest(node.state)
    assert node.orders(stop(seq=12, grace_ms=9_000, signal=2)) == []
    assert s.local_digest(node.state) == before


def test_a_stop_for_the_agents_own_reasons_is_not_asked_about() -> None:
    node = Node().running()
    before = s.local_digest(node.state)
    assert node.desired() == [a.StopJob(ref(), 15, UNWANTED_GRACE_MS)]
    assert s.local_digest(node.state) == before


def test_a_digest_older_than_our_own_facts_says_nothing() -> None:
    node = Node()
    node.see(o.FactsStored(30, ()))
    node.lease(digest="other", seq=29)
    assert node.later(10 * S) == []


def test_both_ends_agree_when_all_is_acknowledged() -> None:
    node = Node().running()
    running = s.local_digest(node.state)
    node.orders(stop())
    assert s.local_digest(node.state) != running
    node.exited()
    node.see(clean())
    node.see(o.FactsStored(30, (o.Mark("j.1", 3),)))
    assert s.local_digest(node.state) == s.local_digest(Node().state)
