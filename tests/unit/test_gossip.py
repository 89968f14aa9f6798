"""When agents may go on without a scheduler: the pure rule."""

from libs.common.messages import Roster, RosterEntry
from libs.common.model import NodeId
from services.node_agent.peers import gossip as g
from services.node_agent.peers.gossip import MS, RENEWED, Gossip

LEASE_MS = 16_000
LEASE = LEASE_MS * MS
WINDOW = 1_000 * MS
S = 1_000_000_000
T = 100 * S
NONCE = b"this round"
NAMES = [NodeId(name) for name in ("a", "b", "c", "d", "e")]


def roster(size: int, seq: int = 1, cluster_id: str = "home", life: str = "") -> Roster:
    nodes = tuple(
        RosterEntry(name, f"10.0.0.{number}:9", "", 1) for number, name in enumerate(NAMES[:size])
    )
    return Roster(
        cluster_id=cluster_id,
        seq=seq,
        digest=f"of {size}",
        lease_ms=LEASE_MS,
        nodes=nodes,
        life=life,
    )


def silent(size: int) -> Gossip:
    """Node a, whose last heartbeat that was answered was sent at T."""
    gossip = Gossip(NAMES[0], 0, roster(size))
    g.granted(gossip, T)
    return gossip


def asking(size: int) -> Gossip:
    gossip = silent(size)
    g.ask(gossip, NONCE, T + 9 * S)
    return gossip


def answer(
    gossip: Gossip, peer: str, unrenewed_ms: int = 1_000, after_ns: int = 0, nonce: bytes = NONCE
) -> int:
    return g.answered(
        gossip=gossip,
        peer=NodeId(peer),
        nonce=g.cookie(nonce, NodeId(peer)),
        peer_unrenewed_ms=unrenewed_ms,
        now_ns=T + 9 * S + after_ns,
    )


def test_a_strict_majority_that_is_not_renewed_extends_the_lease_from_the_moment_of_asking() -> (
    None
):
    gossip = asking(4)
    assert answer(gossip, "b") == 0
    assert answer(gossip, "c", after_ns=WINDOW // 2) == T + 9 * S + LEASE


def test_half_of_the_nodes_is_no_majority() -> None:
    gossip = asking(2)
    assert answer(gossip, "b", RENEWED) == 0
    gossip = asking(4)
    assert answer(gossip, "b") == 0
    assert answer(gossip, "c", RENEWED) == answer(gossip, "d", RENEWED) == 0


def test_a_renewed_peer_does_not_count_and_forbids_nothing() -> None:
    gossip = asking(5)
    assert answer(gossip, "b", RENEWED) == answer(gossip, "c", RENEWED) == answer(gossip, "d") == 0
    assert answer(gossip, "e") == T + 9 * S + LEASE


def test_a_peer_that_answers_twice_counts_once() -> None:
    gossip = asking(4)
    assert answer(gossip, "b") == answer(gossip, "b") == answer(gossip, "a") == 0


def test_a_peer_that_was_renewed_when_it_was_asked_does_not_count() -> None:
    """Not renewed for less than the window: at the moment of asking it may have been."""
    gossip = asking(3)
    assert answer(gossip, "b", 999) == 0
    assert answer(gossip, "b", 1_000) > 0


def test_an_answer_that_comes_late_or_to_another_round_does_not_count() -> None:
    gossip = asking(3)
    assert answer(gossip, "b", after_ns=WINDOW) == 0
    assert answer(gossip, "b", nonce=b"another round") == 0
    g.granted(gossip, T + 9 * S)
    assert answer(gossip, "b") == 0


def test_node_without_peers_asks_none() -> None:
    assert g.ask_at_ns(silent(1), T + LEASE) is None
    assert g.ask_at_ns(silent(2), T + LEASE) is not None


def test_peers_are_asked_once_per_window_from_half_a_lease_until_the_deadline() -> None:
    gossip = silent(3)
    assert g.ask_at_ns(gossip, T + LEASE) == T + LEASE // 2 + WINDOW
    g.ask(gossip, NONCE, T + 9 * S)
    assert g.ask_at_ns(gossip, T + LEASE) == T + 10 * S
    g.ask(gossip, NONCE, T + LEASE - WINDOW)
    assert g.ask_at_ns(gossip, T + LEASE) is None


def test_after_an_extension_the_next_is_asked_for_as_late() -> None:
    gossip = asking(3)
    assert g.ask_at_ns(gossip, T + 9 * S + LEASE) == T + 9 * S + LEASE // 2 + WINDOW


def test_no_peer_is_asked_without_a_roster_a_place_in_it_or_a_lease() -> None:
    assert g.ask_at_ns(Gossip(NAMES[0], T), T + LEASE) is None
    assert g.ask_at_ns(Gossip(NAMES[4], T, roster(4)), T + LEASE) is None
    assert g.ask_at_ns(silent(3), 0) is None


def test_a_node_is_renewed_for_half_a_lease_after_its_heartbeat() -> None:
    gossip = silent(3)
    assert g.unrenewed_ms(gossip, T + LEASE // 2 - 1) == RENEWED
    assert g.unrenewed_ms(gossip, T + LEASE // 2 + 3 * S) == 3_000
    g.granted(gossip, T - S)
    assert g.unrenewed_ms(gossip, T + LEASE // 2 + 3 * S) == 3_000


def test_an_extension_renews_nothing() -> None:
    gossip = asking(2)
    assert answer(gossip, "b") > 0
    assert g.unrenewed_ms(gossip, T + 10 * S) == 2_000


def test_a_new_process_counts_as_renewed_until_now_but_not_beyond_its_lease() -> None:
    assert g.unrenewed_ms(g.begin(NAMES[0], roster(3), 0, T), T + S) == RENEWED
    assert g.unrenewed_ms(g.begin(NAMES[0], roster(3), T + 4 * S, T), T) == 4_000
    assert (
        g.unrenewed_ms(g.begin(NAMES[0], roster(3), T + 90 * S, T), T + LEASE // 2 - 1) == RENEWED
    )


def test_a_roster_is_taken_only_when_it_goes_on_from_the_one_that_is_kept() -> None:
    gossip = Gossip(NAMES[0], T, roster(3, seq=5))
    assert g.takes(gossip, roster(4, seq=6))
    assert not g.takes(gossip, roster(4, seq=4))
    assert not g.takes(gossip, roster(2, seq=6))
    assert g.takes(gossip, roster(1, seq=1, cluster_id="another"))


def test_a_roster_of_another_life_is_taken_with_other_nodes_and_a_lower_sequence() -> None:
    gossip = Gossip(NAMES[0], T, roster(4, seq=90))
    assert g.takes(gossip, roster(3, seq=7, life="1"))
    g.take(gossip, roster(3, seq=7, life="1"))
    assert not g.takes(gossip, roster(4, seq=6, life="1"))
    assert not g.takes(gossip, roster(2, seq=8, life="1"))
    assert g.takes(gossip, roster(4, seq=8, life="1"))
    assert g.takes(gossip, roster(4, seq=6, life="2"))
    assert g.takes(gossip, roster(4, seq=91))


def test_a_roster_of_a_life_that_is_over_extends_no_lease() -> None:
    """Nodes b and c may have joined after the backup: the scheduler counts neither of them."""
    gossip = silent(4)
    assert g.ask_at_ns(gossip, T + LEASE) is not None
    g.hear_life(gossip, "1")
    assert g.ask_at_ns(gossip, T + LEASE) is None
    g.take(gossip, roster(2, life="1"))
    assert g.ask_at_ns(gossip, T + LEASE) is not None


def test_a_round_ends_when_the_scheduler_answers_in_another_life() -> None:
    gossip = asking(3)
    g.hear_life(gossip, "")
    assert answer(asking(3), "b") == answer(gossip, "b") > 0
    gossip = asking(3)
    g.hear_life(gossip, "1")
    assert answer(gossip, "b") == answer(gossip, "c") == 0


def test_a_roster_without_nodes_is_taken_and_extends_no_lease() -> None:
    gossip = silent(3)
    assert g.takes(gossip, roster(0, seq=6))
    g.take(gossip, roster(0, seq=6))
    assert g.ask_at_ns(gossip, T + LEASE) is None
    assert g.takes(gossip, roster(4, seq=7))
    assert not g.takes(gossip, roster(4, seq=5))


def test_a_roster_that_comes_during_a_round_ends_it() -> None:
    gossip = asking(3)
    g.take(gossip, roster(4, seq=6))
    assert answer(gossip, "b") == answer(gossip, "c") == 0


def test_an_answer_with_the_cookie_of_another_peer_does_not_count() -> None:
    gossip = asking(3)
    assert not g.expects(gossip, NodeId("b"), g.cookie(NONCE, NodeId("c")))
    assert g.expects(gossip, NodeId("b"), g.cookie(NONCE, NodeId("b")))
    assert (
        g.answered(
            gossip=gossip,
            peer=NodeId("b"),
            nonce=g.cookie(NONCE, NodeId("c")),
            peer_unrenewed_ms=1_000,
            now_ns=T + 9 * S,
        )
        == 0
    )


def test_no_cookie_is_right_while_no_round_goes_on() -> None:
    gossip = asking(3)
    gossip.nonce = b""
    assert not g.expects(gossip, NodeId("b"), g.cookie(b"", NodeId("b")))
