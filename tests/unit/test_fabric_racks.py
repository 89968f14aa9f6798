"""Measured racks: average linkage over 1/bandwidth."""

from itertools import combinations

from libs.common.model import NodeId
from services.scheduler.fabric.racks import NODES_MAX, names_of, racks_of
from services.scheduler.fabric.rounds import Pair

FAST = 1_000_000


def nodes_of(count: int) -> list[NodeId]:
    return [NodeId(f"n{number:03}") for number in range(count)]


def in_racks(count: int, racks: int, far: int = FAST // 2) -> dict[Pair, int]:
    place = {node: index * racks // count for index, node in enumerate(nodes_of(count))}
    return {
        (a, b): FAST if place[a] == place[b] else far for a, b in combinations(nodes_of(count), 2)
    }


def test_nodes_that_reach_each_other_faster_are_a_rack() -> None:
    found = racks_of(nodes_of(8), in_racks(8, 2))
    assert found == [nodes_of(8)[:4], nodes_of(8)[4:]]
    assert names_of(found)[NodeId("n007")] == "m2"


def test_equal_nodes_are_one_rack() -> None:
    assert racks_of(nodes_of(8), in_racks(8, 1)) == [nodes_of(8)]


def test_a_small_difference_separates_no_racks() -> None:
    assert racks_of(nodes_of(8), in_racks(8, 2, FAST * 9 // 10)) == [nodes_of(8)]


def test_unmeasured_pairs_join_nothing() -> None:
    pairs = {pair: value for pair, value in in_racks(8, 2).items() if value == FAST}
    assert racks_of(nodes_of(8), pairs) == [nodes_of(8)[:4], nodes_of(8)[4:]]
    assert racks_of(nodes_of(4), {}) == []


def test_a_node_that_is_alone_has_no_rack() -> None:
    pairs = {
        pair: value if NodeId("n006") not in pair else FAST // 9
        for pair, value in in_racks(7, 2).items()
    }
    names = names_of(racks_of(nodes_of(7), pairs))
    assert NodeId("n006") not in names and len(set(names.values())) == 2


def test_too_few_or_too_many_nodes_have_no_measured_racks() -> None:
    assert racks_of(nodes_of(1), {}) == []
    assert racks_of(nodes_of(NODES_MAX + 1), in_racks(NODES_MAX + 1, 2)) == []
