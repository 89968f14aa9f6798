"""The counts of the topic `summary`."""

from collections import Counter

from libs.common.facts import GpuFaulted
from libs.common.model import GpuId, NodeId
from services.api_gateway.ws.counts import NodeCount, count_node, total
from tests.given import given, member, placed, registered, started, waiting

HISTORY = [
    registered("a", 3),
    registered("b", 1),
    *waiting("one"),
    *waiting("two"),
    placed("one", member("a", 0, share=50)),
    started("one", "a"),
    placed("two", member("a", 1)),
    GpuFaulted(node_id=NodeId("a"), uuid=GpuId("a-gpu2"), health="offline", reason="lost"),
]


def test_a_node_is_counted_by_use_and_health_of_its_devices() -> None:
    cluster = given(HISTORY).cluster
    assert count_node(cluster, cluster.nodes[NodeId("a")]) == NodeCount(
        state="degraded",
        gpus=3,
        busy=2,
        unhealthy=1,
        held=150,
        states=Counter(IN_USE=1, ALLOCATED=1, OFFLINE=1),
    )


def test_the_summary_is_the_sum_of_all_nodes() -> None:
    cluster = given(HISTORY).cluster
    nodes = {name: count_node(cluster, node) for name, node in cluster.nodes.items()}
    assert total(nodes, Counter(running=1, placed=1, failed=0)) == {
        "jobs": {"placed": 1, "running": 1},
        "nodes": {"degraded": 1, "healthy": 1},
        "gpus": {
            "total": 4,
            "busy": 2,
            "unhealthy": 1,
            "free_share": 250,
            "states": {"ALLOCATED": 1, "AVAILABLE": 1, "IN_USE": 1, "OFFLINE": 1},
        },
    }
