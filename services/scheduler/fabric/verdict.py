"""The verdict on measured pairs: slow nodes, links and racks, and pairs to measure again.

Pure. A suspicion counts only if two more measurements confirm it (STAGES): a slow node measures its
best pairs again, a slow link is measured again. Tests: tests/unit/test_fabric_fit.py and
tests/property/test_planted_fabric.py.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from libs.common.model import NodeId
from libs.common.state.baseline import Baseline, is_below
from services.scheduler.fabric import fit, racks
from services.scheduler.fabric.rounds import Pair, ordered

# The tournament, and two confirmations of what it suspects.
STAGES: Final = 3
# Pairs of a suspected node that a confirmation measures: its best ones.
BEST_PAIRS: Final = 5


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on all pairs that are known.

    `capacities` is `a_i` by node. `slow` nodes and `links` have their part of the usual value in
    thousandths. `fallen` nodes are far below their own baseline; if most nodes are, the fabric
    changed and `shifted` is true instead. `racks` names the rack of each node in one.
    """

    capacities: dict[NodeId, int]
    slow: dict[NodeId, int]
    fallen: dict[NodeId, int]
    links: dict[Pair, int]
    racks: dict[NodeId, str]
    shifted: bool = False

    @property
    def nodes(self) -> dict[NodeId, int]:
        """The suspect nodes and their part, whatever the reason."""
        return self.fallen | self.slow


def judge(
    pairs: Mapping[Pair, int],
    kinds: Mapping[NodeId, str],
    baselines: Mapping[NodeId, Baseline],
) -> Verdict:
    """Return the verdict on these pairs. `kinds` says which nodes have the same hardware."""
    found = fit.capacities(pairs)
    slow = fit.slow_nodes(pairs, kinds)
    fallen = _fallen(found, baselines)
    shifted = 2 * len(fallen) > len(found)
    low = slow if shifted else fallen | slow
    clusters = racks.racks_of([node for node in kinds if node in found and node not in low], pairs)
    names = racks.names_of(clusters)
    return Verdict(
        capacities=found,
        slow=slow,
        fallen={} if shifted else fallen,
        links=fit.slow_links(pairs, names, low),
        racks=names,
        shifted=shifted,
    )


def _fallen(found: Mapping[NodeId, int], baselines: Mapping[NodeId, Baseline]) -> dict[NodeId, int]:
    """Return the nodes far below their own baseline, and their part of it."""
    known = {node: baselines[node] for node in found if node in baselines}
    return {
        node: found[node] * fit.ONE // max(1, baseline.usual)
        for node, baseline in known.items()
        if is_below(baseline, found[node])
    }


def again(verdict: Verdict, pairs: Mapping[Pair, int], targets: Iterable[str]) -> list[Pair]:
    """Return the pairs that confirm or clear these targets: names of nodes, and of links."""
    rows = fit.rows_of(pairs)
    wanted: dict[Pair, None] = {}
    for target in targets:
        if is_link(target):
            wanted[link_of(target)] = None
            continue
        node = NodeId(target)
        partners = [other for other in rows.get(node, {}) if other not in verdict.nodes]
        best = sorted(partners, key=lambda other: (-rows[node][other], other))[:BEST_PAIRS]
        wanted |= {ordered(node, other): None for other in best}
    return list(wanted)


def suspects(verdict: Verdict, nodes: Iterable[NodeId]) -> tuple[str, ...]:
    """Return the suspect nodes and links among these nodes, as targets."""
    among = dict.fromkeys(nodes)
    links = [link_name(pair) for pair in verdict.links if all(node in among for node in pair)]
    return (*(node for node in verdict.nodes if node in among), *links)


def link_name(pair: Pair) -> str:
    return f"{pair[0]} {pair[1]}"


def link_of(name: str) -> Pair:
    first, _, second = name.partition(" ")
    return NodeId(first), NodeId(second)


def is_link(name: str) -> bool:
    return " " in name
