"""The counts of the topic `summary`."""

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from libs.common.change import Change
from libs.common.facts import GpuFaulted
from libs.common.model import GpuId, NodeId
from services.api_gateway.access.fair_turns import FairTurns
from services.api_gateway.access.roles import ADMIN, Principal
from services.api_gateway.views.waiting import Waiting
from services.api_gateway.ws import counts
from services.api_gateway.ws.counts import Counts, NodeCount, count_node, total
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


async def test_nodes_that_a_cancelled_client_left_uncounted_are_counted_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counts, "COUNT_SLICE", 1)
    monkeypatch.setattr(counts, "EVERY_S", 0.0)
    cluster, waiting_ones = given(HISTORY).cluster, Waiting(FairTurns())
    index = SimpleNamespace(counts=Counter[str]())
    gateway = SimpleNamespace(cluster=cluster, waiting=waiting_ones, index=index)
    made, principal = Counts(cast(Any, gateway)), Principal("k", "default", "root", ADMIN)
    for _ in range(2):  # at the first count, and after a change of every node
        waiting_ones.changed(9, {}, cluster.jobs, Change((), tuple(cluster.nodes)))
        for node in cluster.nodes.values():
            node.state = "healthy" if node.state != "healthy" else "degraded"
        cut = asyncio.create_task(made.summary(principal))
        await asyncio.sleep(0)
        cut.cancel()
        await asyncio.gather(cut, return_exceptions=True)
        assert cut.cancelled()
        expected = {name: count_node(cluster, node) for name, node in cluster.nodes.items()}
        value = await made.summary(principal)
        assert value.data == counts.encoded(total(expected, index.counts))
