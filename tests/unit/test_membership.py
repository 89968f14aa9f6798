"""A machine joins once by an invitation, and is removed for ever, safely for those that
count it.
"""

import msgspec
import pytest

from libs.common import facts as f
from libs.common.errors import Refused
from libs.common.life import node_life
from libs.common.messages import Heartbeat, Roster, RosterEntry
from libs.common.messages.admission import Admitted, Invitation, admitted, invitation
from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, Node, membership_of
from libs.common.timing import Timing
from services.api_gateway.intents import membership_intents as intents
from services.api_gateway.problems import Problem
from services.node_agent.peers import gossip as g
from services.node_agent.peers.gossip import Gossip
from services.scheduler.leases import roster as rosters
from services.scheduler.leases.renewals import Renewals
from services.scheduler.leases.roster import PresentRoster, roster
from tests.history import History, node, registered

NS = 1_000_000_000
MS = 1_000_000
NOW = 1_000 * NS
SECRET = "s" * 32
KEY = "UCFIRY65OQE7DFP5KLNS2PF2LVZMUZYJX4OZIEQ36N2IQANUB5XVZ45L"
OTHER_KEY = "UCATS5YOVB6ROX2WUNKGNQ2MP3GMXDMKSG2O4N5CLX3A6W4PZGZZJPJO"
FAR = NodeId("far")


def invited(history: History, name: str = "far") -> History:
    history.say(
        f.NodeInvited(
            node_id=NodeId(name), secret_hash=intents.hash_secret(SECRET), expires_ns=NOW + NS
        )
    )
    return history


def joined(history: History, name: str = "far") -> History:
    invited(history, name)
    history.say(
        f.NodeJoined(node_id=NodeId(name), secret_hash=intents.hash_secret(SECRET), public_key=KEY)
    )
    return history


def wish(**changed: str) -> dict[str, str]:
    return {"node_id": "far", "secret": SECRET, "public_key": KEY, **changed}


# The invitation


def test_an_invitation_is_used_once_and_its_user_may_repeat_the_request() -> None:
    cluster = joined(History()).cluster
    assert cluster.memberships[FAR].public_key == KEY
    assert intents.joining(wish(), cluster, NOW).public_key == KEY
    with pytest.raises(Problem, match="was used"):
        intents.joining(wish(public_key=OTHER_KEY), cluster, NOW)


@pytest.mark.parametrize("key", ["U" + "A" * 55, "", KEY + "\n", KEY.lower(), "S" + KEY[1:]])
def test_a_key_that_no_server_could_read_is_refused_at_the_door(key: str) -> None:
    with pytest.raises(Refused, match="public_key"):
        intents.joining(wish(public_key=key), invited(History()).cluster, NOW)


def test_a_key_that_another_node_has_is_refused_until_that_one_is_removed() -> None:
    history = invited(joined(History(), "near"))
    with pytest.raises(Problem, match="another node's key"):
        intents.joining(wish(), history.cluster, NOW)
    history.say(f.NodeRemovalRequested(node_id=NodeId("near")))
    history.say(f.NodeRemoved(node_id=NodeId("near")))
    assert intents.joining(wish(), history.cluster, NOW).public_key == KEY


def test_a_key_of_a_node_with_which_the_cluster_began_is_refused() -> None:
    history = invited(History())
    history.say(msgspec.structs.replace(registered("n1", "g1"), peer_key=KEY))
    with pytest.raises(Problem, match="another node's key"):
        intents.joining(wish(), history.cluster, NOW)
    assert intents.joining(wish(public_key=OTHER_KEY), history.cluster, NOW).public_key == OTHER_KEY


def test_every_invalid_invitation_is_refused_with_the_same_text() -> None:
    cluster = invited(History()).cluster
    assert intents.joining(wish(), cluster, NOW).node_id == "far"
    said = []
    for bad, at in (
        (wish(secret="x" * 32), NOW),
        (wish(), NOW + 2 * NS),
        (wish(node_id="unknown"), NOW),
    ):
        with pytest.raises(Problem) as problem:
            intents.joining(bad, cluster, at)
        said.append((problem.value.status, problem.value.detail))
    assert len(set(said)) == 1


def test_a_name_is_invited_again_until_it_joined_and_never_after() -> None:
    history = invited(History())
    assert (
        intents.invitation({"node_id": "far"}, history.cluster, "t" * 32, NOW).expires_ns
        == NOW + intents.VALID_S * NS
    )
    with pytest.raises(Problem, match="used once"):
        intents.invitation({"node_id": "far"}, joined(history).cluster, "t" * 32, NOW)


def test_withdrawn_invitation_is_void_and_its_name_free() -> None:
    history = invited(History())
    history.say(intents.removal(history.cluster, "far", False, "ada"))
    with pytest.raises(Problem, match="not known"):
        intents.joining(wish(), history.cluster, NOW)
    invited(history)
    assert intents.joining(wish(), history.cluster, NOW).public_key == KEY
    assert isinstance(
        intents.removal(joined(history).cluster, "far", False, "ada"), f.NodeRemovalRequested
    )


def test_no_fact_holds_the_secret() -> None:
    assert SECRET not in str(intents.invitation({"node_id": "far"}, Cluster(), SECRET, NOW))


def test_a_token_names_node_authority_and_secret_and_half_of_one_is_refused() -> None:
    whole = Invitation("far", "0a" * 32, SECRET)
    assert invitation(whole.token) == whole
    with pytest.raises(Refused, match="is incomplete"):
        invitation(whole.token[:-20])


# Removal


def test_joined_node_is_admitted_until_it_is_removed() -> None:
    history = joined(History())
    assert admitted(history.cluster) == Admitted({"far": KEY})
    history.say(f.NodeRemovalRequested(node_id=FAR))
    assert admitted(history.cluster) == Admitted({"far": KEY})
    history.say(f.NodeRemoved(node_id=FAR))
    assert admitted(history.cluster) == Admitted({}, ("far",))


def test_of_two_nodes_with_one_key_the_registered_one_is_admitted() -> None:
    history = joined(joined(History(), "aaa"))
    assert admitted(history.cluster) == Admitted({"aaa": KEY})
    history.say(registered("far", "g1"))
    assert admitted(history.cluster) == Admitted({"far": KEY})


def test_a_removed_node_stays_removed_in_whatever_order_it_registered() -> None:
    late, early = joined(History()), joined(History())
    late.say(f.NodeRemovalRequested(node_id=FAR))
    late.say(f.NodeRemoved(node_id=FAR))
    late.say(registered("far", "g1"))
    early.say(registered("far", "g1"))
    early.say(f.NodeRemovalRequested(node_id=FAR))
    early.say(f.NodeRemoved(node_id=FAR))
    assert late.cluster.nodes[FAR].state == early.cluster.nodes[FAR].state == node_life.REMOVED


def test_a_node_of_the_launcher_is_removed_only_when_it_is_gone() -> None:
    history = History()
    history.say(registered("n1", "g1"))
    with pytest.raises(Problem, match="did not join"):
        intents.removal(history.cluster, "n1", False, "ada")
    history.say(f.NodeLost(node_id=node("n1"), incarnation=1))
    assert intents.removal(history.cluster, "n1", False, "ada").node_id == "n1"


# The count by which nodes outlive a control plane that is down


def three() -> Cluster:
    names = [NodeId(name) for name in ("a", "b", "c")]
    nodes = {
        name: Node(name, "healthy", 1, address="x", peer_address="x:1", peer_key="k")
        for name in names
    }
    return Cluster(
        timing=Timing(1_000, 10_000, 1_000, 3_000), nodes=nodes, cluster_id="home", seq=5
    )


def leaving(cluster: Cluster, name: str = "c") -> Cluster:
    membership_of(cluster, NodeId(name)).leaving = True
    cluster.leaving_seq = cluster.seq = cluster.seq + 1
    return cluster


def beat(renewals: Renewals, cluster: Cluster, name: str, roster_seq: int) -> None:
    renewals.hear(
        cluster,
        Heartbeat(
            node_id=NodeId(name),
            incarnation=1,
            sent_boot_ns=1,
            digest="",
            roster_nodes=3,
            roster_seq=roster_seq,
        ),
        10 * MS,
    )


def test_a_node_is_removed_only_when_every_agent_keeps_a_roster_that_does_not_believe_it() -> None:
    cluster, renewals = leaving(three()), Renewals()
    beat(renewals, cluster, "a", cluster.leaving_seq)
    assert renewals.removable(cluster) == []
    beat(renewals, cluster, "b", cluster.leaving_seq - 1)
    assert renewals.removable(cluster) == []
    beat(renewals, cluster, "b", cluster.leaving_seq)
    assert renewals.removable(cluster) == ["c"]


def test_a_node_with_a_job_is_not_removed() -> None:
    cluster, renewals = leaving(three()), Renewals()
    cluster.nodes[NodeId("c")].members = {"j": 1}  # type: ignore[dict-item]
    for name in ("a", "b"):
        beat(renewals, cluster, name, cluster.leaving_seq)
    assert renewals.removable(cluster) == []


def test_a_roster_names_one_that_leaves_without_its_key_and_one_that_is_removed_as_such() -> None:
    cluster = leaving(three())
    before = roster(three())
    while_leaving = roster(cluster)
    assert while_leaving.nodes[2] == RosterEntry(NodeId("c"), "", "", 0)
    membership_of(cluster, NodeId("c")).removed = True
    after = roster(cluster)
    assert after.nodes[2].removed and len(after.nodes) == 3
    assert len({before.digest, while_leaving.digest, after.digest}) == 3


def test_a_removed_node_counts_as_half_a_node_of_a_roster(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = three()
    monkeypatch.setattr(rosters, "NODES_MAX", 2)
    assert roster(cluster).nodes == ()
    for name in ("b", "c"):
        leaving(cluster, name)
    assert len(roster(cluster).nodes) == 3


def test_the_entries_of_a_roster_stay_below_their_bounds() -> None:
    cluster = three()
    longest = NodeId("n" * 63)
    node = Node(longest, "healthy", 1 << 62)
    node.peer_address = node.peer_key = "x" * rosters.WORD_MAX
    cluster.nodes[longest] = node
    assert len(msgspec.msgpack.encode(roster(cluster).nodes[-1])) <= rosters.ENTRY_BYTES
    leaving(cluster, longest)
    assert len(msgspec.msgpack.encode(roster(cluster).nodes[-1])) <= rosters.LEFT_BYTES


def test_a_roster_is_made_again_only_after_a_fact_that_may_change_it() -> None:
    cluster, present = three(), PresentRoster()
    first = present.of(cluster)
    cluster.seq += 1
    present.note((f.NodeLost(node_id=NodeId("a"), incarnation=1),))
    assert present.of(cluster) is first
    leaving(cluster)
    present.note((f.NodeRemovalRequested(node_id=NodeId("c")),))
    assert present.of(cluster) == roster(cluster) != first


def test_removed_nodes_hold_no_other_node_alive_for_the_scheduler() -> None:
    """Remove two of three nodes: the silence of the third one counts again."""
    cluster, renewals = three(), Renewals()
    renewals.begin(NOW)
    renewals.check(cluster, NOW + 12 * NS)
    assert renewals.losable(cluster, [(NodeId("b"), 1)], NOW + 12 * NS) == []
    for name in ("b", "c"):
        cluster.nodes[NodeId(name)].state = node_life.REMOVED
    renewals.begin(NOW)
    renewals.check(cluster, NOW + 12 * NS)
    assert renewals.losable(cluster, [(NodeId("a"), 1)], NOW + 12 * NS) == [(NodeId("a"), 1)]


def test_an_agent_counts_the_majority_without_the_removed() -> None:
    names = [NodeId(name) for name in ("a", "b", "c", "d")]
    entries = tuple(
        RosterEntry(node_id=name, address="x:1", key="k", incarnation=1, removed=name in ("c", "d"))
        for name in names
    )
    gossip = Gossip(
        names[0], 0, Roster(cluster_id="home", seq=1, digest="x", lease_ms=16_000, nodes=entries)
    )
    g.granted(gossip, NOW)
    assert g.ask(gossip, b"n", NOW + 9 * NS) == 0
    assert (
        g.answered(
            gossip=gossip,
            peer=names[1],
            nonce=g.cookie(b"n", names[1]),
            peer_unrenewed_ms=1_000,
            now_ns=NOW + 9 * NS,
        )
        == NOW + 25 * NS
    )


def test_a_node_is_removed_once() -> None:
    history = joined(History())
    assert history.say(f.NodeRemoved(node_id=FAR))
    assert not history.say(f.NodeRemoved(node_id=FAR))
