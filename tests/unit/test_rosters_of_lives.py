"""A roster that an agent keeps from before a restore counts for nothing in the restored cluster.

Its sequence may be above all of the restored log, and it may name nodes that joined after the
backup. Nodes a and b are in the backup.
"""

from msgspec.structs import replace

from libs.common import facts as f
from libs.common.messages import Heartbeat, Lease
from libs.common.model import NodeId, life_id
from libs.common.state.cluster import Cluster
from libs.common.timing import FAST, Timing, of_profile
from services.scheduler.leases.renewals import MS, Renewals
from services.scheduler.leases.roster import is_of_this_life, may_hold_lease, roster
from tests.given import registered
from tests.restored import RESTORE, TERM, told

A, B = NodeId("a"), NodeId("b")
TIMING = Timing()
# The sequence of a roster of the lost history.
FORMER = 1_000
LIFE = "1-r"
FASTER = f.LeaseProfileSet(profile=FAST, timing=of_profile(FAST, TIMING))


def cluster(*facts: f.AnyFact) -> Cluster:
    """Return a restored cluster in its first term, after these facts."""
    nodes = [
        replace(registered(name), peer_address=f"10.0.0.{number}:1")
        for number, name in enumerate("ab")
    ]
    began = (TERM, f.ClusterConfigured(cluster_id="home", timing=TIMING), *nodes)
    return told(*began, RESTORE, TERM, *facts)


def beat(
    node_id: NodeId, seq: int, life: str | None, nodes: int = 2, lease_sent_ns: int = 0
) -> Heartbeat:
    return Heartbeat(
        node_id=node_id,
        incarnation=1,
        sent_boot_ns=lease_sent_ns,
        digest="",
        roster_nodes=nodes,
        lease_sent_ns=lease_sent_ns,
        roster_seq=seq,
        roster_life=life,
    )


def test_a_life_has_a_name_only_after_a_restore() -> None:
    assert (life_id(0, ""), life_id(1, ""), life_id(1, "x")) == ("", "1", "1-x")
    assert Lease(1, "ok", 0, 0, 0, "", 3, life=1, restore_id="x").life_id == "1-x"


def test_a_roster_names_its_life_and_another_life_has_another_digest() -> None:
    restored = cluster()
    before = cluster()
    before.life = 0
    assert (roster(restored).life, roster(before).life) == (LIFE, "")
    assert roster(restored).digest != roster(before).digest
    assert roster(restored).nodes == roster(before).nodes


def test_two_restores_of_one_backup_are_two_lives() -> None:
    first, second = cluster(), cluster()
    second.restore_id = "another"
    assert not may_hold_lease(second, second.nodes[A], beat(A, first.seq, roster(first).life))
    assert roster(first).digest != roster(second).digest


def test_a_former_roster_is_no_proof_that_its_agent_leaves_a_node_out() -> None:
    state, renewals = cluster(f.NodeRemovalRequested(node_id=B)), Renewals()
    for node_id in (A, B):
        renewals.hear(state, beat(node_id, FORMER, ""), 0)
    assert renewals.removable(state) == []
    renewals.hear(state, beat(A, state.seq, LIFE), 0)
    assert renewals.removable(state) == [B]


def test_a_former_roster_is_no_proof_of_a_new_timing() -> None:
    state, renewals = cluster(FASTER), Renewals()
    for node_id in (A, B):
        renewals.hear(state, beat(node_id, FORMER, ""), 0)
    assert not renewals.timing_is_known(state)
    for node_id in (A, B):
        renewals.hear(state, beat(node_id, state.timing_seq, LIFE), 0)
    assert renewals.timing_is_known(state)


def test_the_nodes_of_a_former_roster_do_not_count() -> None:
    """A roster of a alone, or of a and b: b is not renewed, so a may have extended its lease."""
    state, renewals = cluster(), Renewals()
    renewals.begin(0)
    renewals.hear(state, beat(A, FORMER, "", nodes=4), 0)
    now = 20_000 * MS
    renewals.check(state, now)
    assert renewals.losable(state, [(A, 1)], now) == []


def test_an_agent_gets_no_lease_until_its_roster_is_of_this_life() -> None:
    state = cluster()
    node = state.nodes[A]
    assert not may_hold_lease(state, node, beat(A, FORMER, ""))
    assert may_hold_lease(state, node, beat(A, state.seq, LIFE))
    state.life = 0
    assert may_hold_lease(state, node, beat(A, 0, ""))
    assert not may_hold_lease(state, node, beat(A, FORMER, LIFE))


def test_an_agent_without_peers_needs_no_roster() -> None:
    state = cluster()
    assert may_hold_lease(state, replace(state.nodes[A], peer_address=""), beat(A, 0, ""))


def test_an_agent_of_an_earlier_release_gets_leases_and_counts_by_the_sequences_of_this_life() -> (
    None
):
    state = cluster(f.NodeRemovalRequested(node_id=B))
    node = state.nodes[A]
    assert may_hold_lease(state, node, beat(A, FORMER, None))
    assert not may_hold_lease(state, node, beat(A, state.leaving_seq - 1, None))
    assert not is_of_this_life(state, beat(A, FORMER, None))
    assert not is_of_this_life(state, beat(A, state.restored_seq, None))
    assert is_of_this_life(state, beat(A, state.seq, None))
    state.life = 0
    assert is_of_this_life(state, beat(A, FORMER, None))
