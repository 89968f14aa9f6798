"""The rounds of a tournament: every pair once, no node twice in a round."""

from itertools import pairwise

import pytest

from libs.common.model import NodeId
from services.scheduler.fabric.rounds import (
    CIRCLE_MAX,
    PAIRS_MAX,
    Pair,
    disjoint,
    ordered,
    rounds_of,
)


def named(count: int) -> list[NodeId]:
    return [NodeId(f"n{number:04}") for number in range(count)]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16, CIRCLE_MAX])
def test_up_to_64_nodes_every_pair_meets_once(count: int) -> None:
    rounds = rounds_of(named(count), "seed")
    met = [pair for each in rounds for pair in each]
    assert len(rounds) == count - 1 + count % 2
    assert len(met) == len(set(met)) == count * (count - 1) // 2


@pytest.mark.parametrize("count", [3, 16, CIRCLE_MAX + 1, 200])
def test_the_pairs_of_a_round_share_no_node(count: int) -> None:
    for each in rounds_of(named(count), "seed"):
        nodes = [node for pair in each for node in pair]
        assert len(nodes) == len(set(nodes)) > 0


def test_above_64_nodes_log2_random_rounds_and_the_neighbours_are_measured() -> None:
    nodes = named(200)
    rounds = rounds_of(nodes, "seed")
    assert len(rounds) == 2 + 8
    met = {pair for each in rounds for pair in each}
    assert all(pair in met for pair in pairwise(nodes))


def test_a_round_of_very_many_nodes_is_cut() -> None:
    assert all(len(each) == PAIRS_MAX for each in rounds_of(named(1_100), "seed"))


def test_fewer_than_two_nodes_have_no_round() -> None:
    assert rounds_of(named(1), "seed") == ()


def test_the_seed_alone_decides_who_meets_whom_first() -> None:
    assert rounds_of(named(16), "a") == rounds_of(named(16), "a")
    assert rounds_of(named(16), "a") != rounds_of(named(16), "b")


def test_disjoint_takes_the_first_pairs_that_share_no_node() -> None:
    a, b, c, d = named(4)
    pairs: list[Pair] = [(a, b), (b, c), (c, d)]
    assert disjoint(pairs) == ((a, b), (c, d))
    assert disjoint(pairs, {a: None}) == ((b, c),)


def test_a_pair_is_named_in_one_order() -> None:
    a, b = named(2)
    assert ordered(b, a) == ordered(a, b) == (a, b)
