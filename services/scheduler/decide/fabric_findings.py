"""The findings of a fabric test: the verdict on known pairs, confirmed suspects, and failures.

Pure. Tests: tests/unit/test_fabric_decide.py and test_gang_preflight.py.
"""

from itertools import combinations
from typing import Final, NamedTuple

from libs.common.model import NodeId
from libs.common.state.cluster import Cluster, Node, node_gpus
from libs.common.state.fabric import FabricTest, pair_key, pair_of
from services.scheduler.fabric.fit import PARTNERS_MIN
from services.scheduler.fabric.rounds import Pair
from services.scheduler.fabric.verdict import STAGES, Verdict, is_link, judge, link_of, suspects
from services.scheduler.state.fabric_rules import MS
from services.scheduler.state.state import State

# Only results of this age or younger count for a verdict.
KNOWN_NS: Final = 7 * 24 * 3_600 * 1_000 * MS


def verdict_of(state: State) -> tuple[Verdict, dict[Pair, int]]:
    """Return the verdict on all pairs that are known, and these pairs."""
    cluster, fabric = state.cluster, state.cluster.fabric
    since_ns = state.wall_ns - KNOWN_NS
    kinds = {node.node_id: _kind(cluster, node) for node in cluster.nodes.values() if node.usable}
    known = {
        pair_of(key): view.bandwidth
        for key, view in fabric.pairs.items()
        if view.bandwidth and view.at_ns > since_ns and all(node in kinds for node in pair_of(key))
    }
    baselines = {node_id: view.baseline for node_id, view in fabric.nodes.items()}
    return judge(known, kinds, baselines), known


def _kind(cluster: Cluster, node: Node) -> str:
    """Return what makes nodes comparable: their GPUs."""
    return ",".join(sorted({view.gpu.model for view in node_gpus(cluster, node)}))


class Findings(NamedTuple):
    """The confirmed suspects of a test, and what fails, with the reasons."""

    verdict: Verdict
    known: dict[Pair, int]
    nodes: list[NodeId]
    links: list[Pair]
    failing: dict[NodeId, str]
    cut: list[str]


def findings(state: State, test: FabricTest, is_over: bool = False) -> Findings:
    """Return what the test found, as far as confirmations bear it out.

    `is_over`: no time is left for confirmations, so nodes count without, and links do not.
    """
    verdict, known = verdict_of(state)
    last = dict.fromkeys(test.targets) if test.stage == STAGES - 1 else {}
    found = [
        each
        for each in suspects(verdict, test.nodes)
        if each in last or (is_over and not is_link(each))
    ]
    return Findings(
        verdict=verdict,
        known=known,
        nodes=[NodeId(each) for each in found if not is_link(each)],
        links=[link_of(each) for each in found if is_link(each)],
        failing=_failing(state, test),
        cut=[key for key in failing_links(state, test) if key in last],
    )


def _failing(state: State, test: FabricTest) -> dict[NodeId, str]:
    """Return the nodes of which most probes failed, and the failure in words.

    A single partner that fails or lies makes no other node a suspect.
    """
    failed: dict[NodeId, list[str]] = {node_id: [] for node_id in test.nodes}
    measured = dict.fromkeys(test.nodes, 0)
    for pair in combinations(test.nodes, 2):
        view = state.cluster.fabric.pairs.get(pair_key(*pair))
        for node_id in pair if view is not None else ():
            if view is not None and view.error:
                failed[node_id].append(view.error)
            measured[node_id] += 1
    return {
        node_id: f"{len(errors)} of {measured[node_id]} probes failed: {errors[-1]}"
        for node_id, errors in failed.items()
        if len(errors) >= PARTNERS_MIN and 2 * len(errors) > measured[node_id]
    }


def failing_links(state: State, test: FabricTest) -> list[str]:
    """Return the links whose last probe failed, although their nodes reach others."""
    failing = _failing(state, test)
    found = []
    for pair in combinations(sorted(test.nodes), 2):
        view = state.cluster.fabric.pairs.get(pair_key(*pair))
        if view is not None and view.error and not any(node in failing for node in pair):
            found.append(pair_key(*pair))
    return found


def reason_of(state: State, verdict: Verdict, node_id: NodeId) -> str:
    """Return the measurement that makes the node a suspect, in words."""
    mbit = verdict.capacities[node_id] * 8 / 1e6
    if node_id in verdict.slow:
        part = verdict.slow[node_id] / 10
        return f"its links carry {mbit:.1f} Mbit/s, {part:.0f} % of other nodes of its kind"
    part, usual = verdict.fallen[node_id] / 10, state.cluster.fabric.nodes[node_id].baseline.usual
    return f"its links carry {mbit:.1f} Mbit/s, {part:.0f} % of its own {usual * 8 / 1e6:.1f}"
