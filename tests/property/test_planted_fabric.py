"""Planted slow nodes, slow links and racks are found, and healthy fabrics raise no alarm.

The fabric is `min(a_i, a_j, l_ij)` with noise, measured as the scheduler does it: a tournament,
then two confirmations of what it suspects.
"""

from random import Random

import pytest

from libs.common.model import NodeId
from services.scheduler.fabric.racks import names_of, racks_of
from services.scheduler.fabric.rounds import Pair, ordered, rounds_of
from services.scheduler.fabric.verdict import STAGES, again, judge, link_name, suspects

BASE = 2_500_000
SEEDS = 60


class Fabric:
    """A fabric with planted faults."""

    def __init__(
        self, chance: Random, nodes: int, noise: float, racks: int = 1, far: float = 0.5
    ) -> None:
        self.chance, self.noise, self.far = chance, noise, far
        self.nodes = [NodeId(f"n{number:03}") for number in range(nodes)]
        self.rack = {node: index * racks // nodes for index, node in enumerate(self.nodes)}
        self.capacity = dict.fromkeys(self.nodes, BASE)
        self.links: dict[Pair, float] = {}
        # Nodes that lie: whatever they receive, they report this.
        self.lies: dict[NodeId, int] = {}

    def plant(self, slow_nodes: int, slow_links: int) -> set[str]:
        """Plant faults and return their names."""
        slow = self.chance.sample(self.nodes, slow_nodes)
        for node in slow:
            self.capacity[node] = int(BASE * self.chance.uniform(0.3, 0.7))
        good = [node for node in self.nodes if node not in slow]
        while len(self.links) < slow_links:
            pair = ordered(*self.chance.sample(good, 2))
            self.links[pair] = self.chance.uniform(0.2, 0.6)
        return {*slow, *(link_name(pair) for pair in self.links)}

    def measure(self, pair: Pair) -> int:
        a, b = pair
        top = BASE * (1.0 if self.rack[a] == self.rack[b] else self.far)
        true = min(self.capacity[a], self.capacity[b], top * self.links.get(pair, 1.0))
        received = [max(1, int(true * self.chance.gauss(1, self.noise))) for _ in pair]
        return min(self.lies.get(node, value) for node, value in zip(pair, received, strict=True))

    def tournament(self) -> tuple[str, ...]:
        """Return what is still suspect after the last confirmation."""
        kinds = dict.fromkeys(self.nodes, "")
        rounds = rounds_of(self.nodes, str(self.chance.random()))
        pairs = {pair: self.measure(pair) for each in rounds for pair in each}
        verdict = judge(pairs, kinds, {})
        found = suspects(verdict, self.nodes)
        for _ in range(STAGES - 1):
            pairs |= {pair: self.measure(pair) for pair in again(verdict, pairs, found)}
            verdict = judge(pairs, kinds, {})
            found = tuple(each for each in suspects(verdict, self.nodes) if each in found)
        return found


@pytest.mark.parametrize(
    ("nodes", "noise", "racks"), [(16, 0.03, 1), (16, 0.1, 1), (16, 0.05, 2), (32, 0.1, 4)]
)
def test_planted_slow_nodes_and_links_are_found(nodes: int, noise: float, racks: int) -> None:
    right = wrong = missed = 0
    for seed in range(SEEDS):
        fabric = Fabric(Random(f"{nodes} {noise} {seed}"), nodes, noise, racks)
        planted, found = fabric.plant(nodes // 16, nodes // 16), set(fabric.tournament())
        right, wrong = right + len(found & planted), wrong + len(found - planted)
        missed += len(planted - found)
    assert right / (right + wrong) >= 0.95
    assert right / (right + missed) >= 0.95


def test_planted_slow_nodes_are_found_among_more_than_64() -> None:
    right = wrong = missed = 0
    for seed in range(SEEDS // 3):
        fabric = Fabric(Random(seed), 128, 0.05)
        planted, found = fabric.plant(3, 0), set(fabric.tournament())
        right, wrong = right + len(found & planted), wrong + len(found - planted)
        missed += len(planted - found)
    assert right / (right + wrong) >= 0.95
    assert right / (right + missed) >= 0.95


def test_a_healthy_fabric_raises_less_than_one_alarm_in_1000_rounds() -> None:
    rounds = alarms = 0
    for seed in range(90):
        fabric = Fabric(Random(f"healthy {seed}"), 16, 0.1, racks=seed % 3 + 1)
        alarms += len(fabric.tournament())
        rounds += 15
    assert rounds > 1_000
    assert alarms * 1_000 < rounds


@pytest.mark.parametrize("racks", [2, 3, 4])
def test_racks_are_found_with_a_tenth_of_noise(racks: int) -> None:
    """The adjusted Rand index is at least 0.9."""
    for seed in range(20):
        fabric = Fabric(Random(f"racks {seed}"), 24, 0.1, racks, far=1 / 1.9)
        pairs = {
            pair: fabric.measure(pair) for each in rounds_of(fabric.nodes, "s") for pair in each
        }
        found = names_of(racks_of(fabric.nodes, pairs))
        labels = [found.get(node, node) for node in fabric.nodes]
        assert rand_index(labels, [fabric.rack[node] for node in fabric.nodes]) >= 0.9


def rand_index(one: list[str], other: list[int]) -> float:
    """Return the adjusted Rand index of two clusterings."""

    def pairs(counts: list[int]) -> int:
        return sum(count * (count - 1) // 2 for count in counts)

    both = list(zip(one, other, strict=True))
    joint = pairs([both.count(each) for each in set(both)])
    first, second = (
        pairs([labels.count(each) for each in set(labels)])
        for labels in ([str(each) for each in one], [str(each) for each in other])
    )
    total = pairs([len(one)])
    expected = first * second / total
    return (joint - expected) / ((first + second) / 2 - expected)


@pytest.mark.parametrize("lie", [1, BASE // 2, 100 * BASE])
def test_a_node_that_lies_harms_only_its_own_row(lie: int) -> None:
    for seed in range(20):
        fabric = Fabric(Random(f"lie {seed}"), 16, 0.05, racks=2)
        liar = fabric.nodes[seed % 16]
        fabric.lies[liar] = lie
        found = fabric.tournament()
        assert all(liar in each.split() for each in found)
