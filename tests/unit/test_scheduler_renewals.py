"""No node is lost while most nodes may have gone on by themselves: the scheduler's half of the
rule.
"""

import pytest

from libs.common.messages import Heartbeat
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, Node
from libs.common.timing import Timing
from services.scheduler.leases.renewals import Renewals

MS = 1_000_000
LEASE_MS = 10_000
SILENCE_MS = 11_000
CHECK_MS = 100
BEAT_MS = 1_000
NAMES = [NodeId(name) for name in ("a", "b", "c", "d")]
CLUSTER = Cluster(
    timing=Timing(BEAT_MS, LEASE_MS, 1_000, 3_000),
    nodes={name: Node(name, "healthy", 1, peer_address="host:1") for name in NAMES},
)
T_MS = 1_000_000


class Watched:
    """A scheduler that is asked every 100 ms. Each node's clock shows the same as its own."""

    def __init__(self, roster_nodes: int = 0) -> None:
        self.renewals = Renewals()
        self.now_ms = T_MS
        self.roster_nodes = roster_nodes
        self.held: dict[NodeId, int] = {}
        self.renewals.begin(self.now_ms * MS)

    def go(self, ms: int, *beating: NodeId, granted: bool = True, late_ms: int = 0) -> "Watched":
        """So long, with these nodes sending each second; a lease is in their hands at once."""
        end_ms = self.now_ms + ms
        while self.now_ms < end_ms:
            if (self.now_ms - T_MS) % BEAT_MS == 0:
                for name in beating:
                    self.beat(name, granted, late_ms)
            self.renewals.check(CLUSTER, self.now_ms * MS)
            self.now_ms += CHECK_MS
        return self

    def beat(self, name: NodeId, granted: bool, late_ms: int = 0) -> None:
        sent_ns = (self.now_ms - late_ms) * MS
        beat = Heartbeat(
            node_id=name,
            incarnation=1,
            sent_boot_ns=sent_ns,
            digest="",
            roster_nodes=self.roster_nodes,
            lease_sent_ns=self.held.get(name, 0),
            lease_took_ns=0,
        )
        self.renewals.hear(CLUSTER, beat, self.now_ms * MS)
        if granted:
            self.renewals.grant(beat, self.now_ms * MS)
            self.held[name] = sent_ns

    def are_whole(self) -> bool:
        return self.renewals.are_whole(CLUSTER, self.now_ms * MS)

    def losable(self) -> str:
        return "".join(
            name
            for name, _ in self.renewals.losable(
                CLUSTER, [(name, 1) for name in NAMES], self.now_ms * MS
            )
        )


A, B, C, D = NAMES


def test_few_nodes_are_renewed_until_half_of_them_name_a_new_lease() -> None:
    watched = Watched().go(5_000, *NAMES)
    assert not watched.renewals.few_renewed
    assert watched.go(SILENCE_MS, A).renewals.few_renewed
    assert not watched.go(3_000, A, B).renewals.few_renewed
    assert watched.go(SILENCE_MS).renewals.few_renewed
    watched.renewals.begin(watched.now_ms * MS)
    assert not watched.renewals.few_renewed


def test_a_silent_node_is_lost_while_its_peers_are_renewed() -> None:
    watched = Watched().go(5_000, *NAMES).go(SILENCE_MS, A, B, C)
    assert "d" in watched.losable()
    watched = Watched().go(5_000, *NAMES).go(SILENCE_MS, B, C, D)
    assert "a" in watched.losable()


def test_half_of_a_roster_is_enough() -> None:
    assert "d" in Watched().go(5_000, *NAMES).go(SILENCE_MS + 6_000, A, B).losable()


def test_none_is_lost_while_most_are_not_renewed_nor_for_a_silence_after() -> None:
    watched = Watched().go(5_000, *NAMES).go(SILENCE_MS, A)
    assert watched.losable() == ""
    watched.go(SILENCE_MS, A, B, C)
    assert watched.losable() == ""
    assert watched.go(3_000, A, B, C).losable() == "abcd"


def test_every_roster_that_a_node_may_have_counts_until_it_names_a_larger_one() -> None:
    watched = Watched().go(5_000, *NAMES).go(SILENCE_MS + 6_000, C, D)
    assert (
        watched.losable() == "d"
    )  # the others may know of no more than three, of which two are not renewed
    watched = Watched(roster_nodes=4).go(5_000, *NAMES).go(SILENCE_MS + 6_000, C, D)
    assert watched.losable() == "abcd"


def test_a_node_without_peers_is_lost_unless_most_of_all_nodes_are_not_renewed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = Watched().go(5_000, *NAMES).go(SILENCE_MS + 6_000, C, D)
    assert watched.losable() == "d"
    for node in CLUSTER.nodes.values():
        monkeypatch.setattr(node, "peer_address", "")
    assert watched.losable() == "abcd"
    assert watched.go(SILENCE_MS, D).losable() == ""


def test_a_node_that_is_heard_but_has_no_lease_is_not_renewed() -> None:
    assert Watched().go(5_000, *NAMES).go(SILENCE_MS, A, B, C, granted=False).losable() == ""


def test_a_lease_of_another_process_renews_nothing() -> None:
    watched = Watched().go(5_000, *NAMES)
    watched.held = dict.fromkeys(NAMES, 7)
    watched.renewals.begin(watched.now_ms * MS)
    assert watched.go(SILENCE_MS, A, B, C, granted=False).losable() == ""


def test_no_node_counts_as_renewed_during_a_pause_of_this_process() -> None:
    watched = Watched().go(SILENCE_MS + 5_000, *NAMES)
    assert watched.losable() == "abcd"
    watched.now_ms += 6_000
    watched.go(CHECK_MS, *NAMES)
    assert watched.losable() == ""


def test_a_node_that_registers_starts_no_count_again() -> None:
    watched = Watched().go(SILENCE_MS + 5_000, A, B, C)
    CLUSTER.nodes[NodeId("e")] = Node(NodeId("e"), "healthy", 1)
    try:
        assert "d" in watched.go(500, A, B, C).losable()
    finally:
        del CLUSTER.nodes[NodeId("e")]


def test_replaced_nodes_are_lost_when_their_new_agents_are_heard_and_other_nodes_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are given no lease before: counted as any other, a fleet that was installed again would
    wait for ever.
    """
    watched = Watched().go(2_000, *NAMES)
    for name in NAMES[:3]:
        monkeypatch.setattr(CLUSTER.nodes[name], "replaced", [1])
    assert watched.go(SILENCE_MS + LEASE_MS, *NAMES[:3], granted=False).losable() == "abc"
    assert watched.go(SILENCE_MS + LEASE_MS).losable() == ""


def test_an_agent_that_replaced_another_makes_no_other_node_be_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The one of before may be alive, and say to its peers that it is not renewed."""
    watched = Watched().go(2_000, *NAMES)
    monkeypatch.setattr(CLUSTER.nodes[NAMES[0]], "replaced", [1])
    assert watched.go(SILENCE_MS + LEASE_MS, NAMES[0], NAMES[2]).losable() == "a"


def test_without_a_silent_node_none_is_lost() -> None:
    watched = Watched().go(SILENCE_MS, *NAMES)
    assert watched.renewals.losable(CLUSTER, [], watched.now_ms * MS) == []


def test_renewals_are_whole_when_every_usable_node_was_renewed_for_a_lease_and_a_margin() -> None:
    watched = Watched().go(SILENCE_MS + BEAT_MS, *NAMES)
    assert not watched.are_whole()
    assert watched.go(2 * CHECK_MS, *NAMES).are_whole()


def test_renewals_are_not_whole_while_one_node_was_not_renewed() -> None:
    watched = Watched().go(2 * SILENCE_MS, *NAMES)
    assert watched.are_whole()
    assert not watched.go(LEASE_MS // 2 + BEAT_MS, *NAMES[:3]).are_whole()
    assert not watched.go(SILENCE_MS, *NAMES).are_whole()
    assert watched.go(2 * BEAT_MS, *NAMES).are_whole()
    assert not Watched().go(2 * SILENCE_MS, *NAMES[:3]).are_whole()
