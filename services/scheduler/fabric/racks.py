"""Measured racks: nodes that reach each other faster than the others.

Pure. The distance of two nodes is 1/bandwidth. Average linkage joins the nearest clusters first;
the first large jump between two joins says where to stop. Pairs without a measurement count for
nothing: two clusters without a measured pair are never joined. Tests:
tests/unit/test_fabric_racks.py, tests/property/test_planted_fabric.py.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from libs.common.model import NodeId
from services.scheduler.fabric.rounds import Pair

# Clustering takes time with the square of the nodes; more than this stay without measured racks.
NODES_MAX: Final = 256
# The smallest jump between two joins that separates racks, in thousandths.
JUMP_MIN: Final = 1_250
# Distances are this many units per byte and second; bandwidths stay far below it.
UNIT: Final = 1 << 60

Cluster = list[NodeId]


def racks_of(nodes: Iterable[NodeId], pairs: Mapping[Pair, int]) -> list[Cluster]:
    """Return the racks in the order of `nodes`; one rack if no jump separates them.

    Return no rack for more than NODES_MAX nodes, or where every node is alone.
    """
    known = list(nodes)
    if not 1 < len(known) <= NODES_MAX:
        return []
    joins = _joins(known, pairs)
    clusters: dict[int, Cluster] = {index: [node] for index, node in enumerate(known)}
    for first, second, _ in joins[: _kept(joins, len(known))]:
        clusters[first] += clusters.pop(second)
    place = {node: index for index, node in enumerate(known)}
    found = [sorted(cluster, key=place.__getitem__) for cluster in clusters.values()]
    return found if any(len(cluster) > 1 for cluster in found) else []


Join = tuple[int, int, int]


def _kept(joins: list[Join], count: int) -> int:
    """Return how many joins come before the first jump, which separates racks.

    The jump must leave racks, so it is searched among the later half of the joins.
    """
    heights = [height for _, _, height in joins]
    return next(
        (
            index
            for index in range(count // 2, len(heights))
            if heights[index] * 1_000 > JUMP_MIN * heights[index - 1]
        ),
        len(joins),
    )


def _joins(nodes: list[NodeId], pairs: Mapping[Pair, int]) -> list[Join]:
    """Return the joins of average linkage, the nearest first: (kept cluster, joined one, height).

    Clusters are named by their first node's index.
    """
    sums = _distances(nodes, pairs)
    nearest = {index: _nearest(row) for index, row in sums.items()}
    joins: list[Join] = []
    for _ in nodes[1:]:
        height, first = min((mean, index) for index, (mean, _) in nearest.items())
        second = nearest[first][1]
        if second < 0:
            break
        first, second = min(first, second), max(first, second)
        joins.append((first, second, height))
        _merge(sums, first, second)
        del nearest[second]
        stale = [i for i, (_, other) in nearest.items() if other in (first, second) or i == first]
        nearest |= {index: _nearest(sums[index]) for index in stale}
        for index, (total, count) in sums[first].items():
            nearest[index] = min(nearest[index], (total // count, first))
    return joins


Row = dict[int, tuple[int, int]]


def _distances(nodes: list[NodeId], pairs: Mapping[Pair, int]) -> dict[int, Row]:
    """Return for each node the sum and number of its distances to each other one."""
    place = {node: index for index, node in enumerate(nodes)}
    sums: dict[int, Row] = {index: {} for index in range(len(nodes))}
    for (a, b), bandwidth in pairs.items():
        if a in place and b in place:
            entry = (UNIT // max(1, bandwidth), 1)
            sums[place[a]][place[b]] = sums[place[b]][place[a]] = entry
    return sums


def _nearest(row: Row) -> tuple[int, int]:
    """Return (mean distance, index) of the nearest other cluster; (UNIT, -1) if none is known."""
    return min(((total // count, index) for index, (total, count) in row.items()), default=FAR)


FAR: Final = (UNIT + 1, -1)


def _merge(sums: dict[int, Row], first: int, second: int) -> None:
    """Move the distances of the second cluster to the first one."""
    for index, (total, count) in sums.pop(second).items():
        del sums[index][second]
        if index == first:
            continue
        before, known = sums[first].get(index, (0, 0))
        sums[first][index] = sums[index][first] = (before + total, known + count)


def names_of(racks: Iterable[Cluster]) -> dict[NodeId, str]:
    """Return the rack of each node: m1, m2 and so on. A node that is alone has none."""
    shared = [rack for rack in racks if len(rack) > 1]
    return {node: f"m{number}" for number, rack in enumerate(shared, 1) for node in rack}
