"""The model of the fabric: `bw_ij = min(a_i, a_j, l_ij)`.

`a_i` is what node i can do, `l_ij` what the link between two nodes can do. A healthy node has at
least some good pairs, so `a_i` is the 90th percentile of its row. The residual
`r_ij = bw_ij / min(a_i, a_j)` is what is left for the link. A node that lies can lower only its own
row: a pair counts as what the worse of its two ends received, and one low value does not move
a percentile of another row. Pure; bandwidths are bytes per second, ratios are thousandths. Tests:
tests/unit/test_fabric_fit.py, tests/property/test_planted_fabric.py.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from libs.common.model import NodeId
from services.scheduler.fabric.rounds import Pair, ordered

ONE: Final = 1_000
CAPACITY_PERCENT: Final = 90
# With fewer measured partners than this, a slow node and a slow link look alike.
PARTNERS_MIN: Final = 3
# A node is slow below this part of the median of its kind, a link below this part of its residual.
NODE_LOW: Final = 850
LINK_LOW: Final = 800
# Where the values themselves scatter, the limit is this many deviations below the median, but
# never below the floor.
DEVIATIONS: Final = 4
FLOOR: Final = 600
# A block of two racks with fewer pairs than this is judged with all other pairs between racks.
BLOCK_MIN: Final = 4

Key = TypeVar("Key")


def percentile(values: Iterable[int], percent: int) -> int:
    """Return the smallest value that at least this percentage of the values does not exceed."""
    ranked = sorted(values)
    return ranked[max(0, -(-len(ranked) * percent // 100) - 1)]


def median(values: Iterable[int]) -> int:
    return percentile(values, 50)


def deviation(values: Sequence[int]) -> int:
    """Return the median absolute deviation of the values."""
    middle = median(values)
    return median([abs(value - middle) for value in values])


def rows_of(pairs: Mapping[Pair, int]) -> dict[NodeId, dict[NodeId, int]]:
    """Return each node's measured partners and the bandwidth to each."""
    rows: dict[NodeId, dict[NodeId, int]] = defaultdict(dict)
    for (a, b), bandwidth in pairs.items():
        rows[a][b] = rows[b][a] = bandwidth
    return dict(rows)


def capacities(pairs: Mapping[Pair, int]) -> dict[NodeId, int]:
    """Return `a_i` of every node that measured a pair."""
    return {
        node: percentile(row.values(), CAPACITY_PERCENT)
        for node, row in sorted(rows_of(pairs).items())
    }


def slow_nodes(pairs: Mapping[Pair, int], kinds: Mapping[NodeId, str]) -> dict[NodeId, int]:
    """Return the nodes that are slower than the others of their kind.

    The value is the node's part of the median in thousandths. Nodes of a kind have the same
    hardware. A kind with too few nodes, or a node with too few partners, has no verdict.
    """
    rows, found = rows_of(pairs), capacities(pairs)
    alike: dict[str, list[NodeId]] = defaultdict(list)
    for node in found:
        alike[kinds.get(node, "")].append(node)
    slow: dict[NodeId, int] = {}
    for nodes in alike.values():
        usual = median([found[node] for node in nodes])
        if len(nodes) <= PARTNERS_MIN or not usual:
            continue
        parts = {node: found[node] * ONE // usual for node in nodes}
        limit = _limit(NODE_LOW, list(parts.values()))
        slow |= {
            node: part
            for node, part in parts.items()
            if part < limit and len(rows[node]) >= PARTNERS_MIN
        }
    return slow


def residuals(pairs: Mapping[Pair, int]) -> dict[Pair, int]:
    """Return `r_ij` of every pair, in thousandths."""
    found = capacities(pairs)
    return {
        (a, b): bandwidth * ONE // max(1, min(found[a], found[b]))
        for (a, b), bandwidth in pairs.items()
    }


def slow_links(
    pairs: Mapping[Pair, int], racks: Mapping[NodeId, str], slow: Mapping[NodeId, int]
) -> dict[Pair, int]:
    """Return the links that are slower than others between the same two racks.

    The value is the link's part of the usual residual in thousandths. Links of slow nodes have no
    verdict. Fewer than PARTNERS_MIN partners at either end give none either.
    """
    rows = rows_of(pairs)
    judged = {
        pair: residual
        for pair, residual in residuals(pairs).items()
        if not any(node in slow or len(rows[node]) < PARTNERS_MIN for node in pair)
    }
    blocks: dict[Pair, dict[Pair, int]] = defaultdict(dict)
    for (a, b), residual in judged.items():
        block = ordered(NodeId(racks.get(a, "")), NodeId(racks.get(b, "")))
        blocks[block][a, b] = residual
    far = [value for (a, b), among in blocks.items() if a != b for value in among.values()]
    parts: dict[Pair, int] = {}
    for (a, b), among in blocks.items():
        values = far if a != b and len(among) < BLOCK_MIN else list(among.values())
        usual = max(1, median(values))
        parts |= {pair: value * ONE // usual for pair, value in among.items()}
    limit = _limit(LINK_LOW, list(parts.values())) if parts else 0
    return {pair: part for pair, part in parts.items() if part < limit}


def _limit(usual: int, parts: Sequence[int]) -> int:
    """Return the limit for these parts of their median: lower where they scatter."""
    return max(FLOOR, min(usual, ONE - DEVIATIONS * deviation(parts)))
