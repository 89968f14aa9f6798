"""The rows of the fleet map: states, free shares and holders, and what another tenant sees."""

import msgspec

from libs.common.facts import GpuFaulted
from libs.common.model import GpuHold, GpuId, JobId, Member, NodeId
from libs.common.state.cluster import Cluster
from services.api_gateway.access.roles import ADMIN, VIEWER, Principal
from services.api_gateway.views.fleet import FleetHolder, FleetNodeShown, fleet_row, is_on_map
from tests.given import given, member, placed, registered, started, waiting

ANN = Principal("k", "default", "ann", VIEWER)
ROOT = Principal("k", "default", "root", ADMIN)
INSTANCE = GpuHold(GpuId("a-gpu1"), 14, "mig", "1g.10gb", 1)
HISTORY = [
    registered("a", 3, rack="r1"),
    *waiting("mine", name="train"),
    *waiting("theirs", tenant="physics", name="secret plan"),
    *waiting("small"),
    placed("mine", member("a", 0, share=50)),
    placed("theirs", member("a", 0, share=30)),
    placed("small", Member(NodeId("a"), 1, 0, (INSTANCE,))),
    started("mine", "a"),
    GpuFaulted(node_id=NodeId("a"), uuid=GpuId("a-gpu2"), health="offline", reason="lost"),
]


def cluster() -> Cluster:
    return given(HISTORY).cluster


def row(who: Principal) -> FleetNodeShown:
    state = cluster()
    return fleet_row(who, state, state.nodes[NodeId("a")])


def test_a_row_shows_the_node_and_the_state_and_free_share_of_each_gpu() -> None:
    found = row(ROOT)
    assert (found.id, found.state, found.rack) == ("a", "degraded", "r1")
    assert [(gpu.index, gpu.state, gpu.health, gpu.free) for gpu in found.gpus] == [
        (0, "IN_USE", "healthy", 20),
        (1, "ALLOCATED", "healthy", 86),
        (2, "OFFLINE", "offline", 100),
    ]


def test_an_operator_sees_every_holder_and_its_mig_instance() -> None:
    first, second, _ = row(ROOT).gpus
    assert first.holders == [
        FleetHolder("default", 50, "mine", "", "train"),
        FleetHolder("physics", 30, "theirs", "", "secret plan"),
    ]
    assert second.holders == [FleetHolder("default", 14, "small", profile="1g.10gb")]


def test_a_tenant_sees_jobs_of_others_as_their_share_only() -> None:
    first = msgspec.to_builtins(row(ANN).gpus[0].holders)
    assert first == [
        {"tenant": "default", "share": 50, "job": "mine", "name": "train"},
        {"tenant": None, "share": 30},
    ]
    assert b"secret" not in msgspec.json.encode(row(ANN))


def test_a_holder_that_left_the_state_is_its_share() -> None:
    state = cluster()
    del state.jobs[JobId("mine")]
    found = fleet_row(ROOT, state, state.nodes[NodeId("a")])
    assert found.gpus[0].holders[0] == FleetHolder(None, 50)


def test_removed_nodes_leave_the_map() -> None:
    node = cluster().nodes[NodeId("a")]
    assert is_on_map(node)
    node.state = "removed"
    assert not is_on_map(node)
