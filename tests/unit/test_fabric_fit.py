"""The model of the fabric: capacities, residuals, suspects, baselines and confirmations."""

from itertools import combinations

from libs.common.model import NodeId
from libs.common.state.baseline import VALUES_MIN, Baseline, is_below, updated
from services.scheduler.fabric import fit
from services.scheduler.fabric.rounds import Pair
from services.scheduler.fabric.verdict import (
    BEST_PAIRS,
    again,
    judge,
    link_name,
    link_of,
    suspects,
)

FAST = 1_000_000


def nodes_of(count: int) -> list[NodeId]:
    return [NodeId(f"n{number:02}") for number in range(count)]


def matrix(count: int, capacity: dict[str, int] | None = None) -> dict[Pair, int]:
    """All pairs of `count` nodes, with these capacities."""
    known = capacity or {}
    return {
        (a, b): min(known.get(a, FAST), known.get(b, FAST))
        for a, b in combinations(nodes_of(count), 2)
    }


def kinds(count: int, words: str = "") -> dict[NodeId, str]:
    return dict.fromkeys(nodes_of(count), words)


def link(a: int, b: int) -> Pair:
    return NodeId(f"n{a:02}"), NodeId(f"n{b:02}")


def test_a_capacity_is_the_90th_percentile_of_the_nodes_row() -> None:
    pairs = matrix(11, {"n03": 400_000})
    assert fit.capacities(pairs)[NodeId("n03")] == 400_000
    assert fit.capacities(pairs)[NodeId("n00")] == FAST
    assert fit.percentile([5, 1, 3], 90) == 5
    assert fit.median([4, 1, 3, 2]) == 2


def test_a_slow_node_is_found_and_its_partners_are_not_blamed() -> None:
    pairs = matrix(8, {"n03": 500_000})
    assert fit.slow_nodes(pairs, kinds(8)) == {NodeId("n03"): 500}
    assert fit.slow_links(pairs, {}, {NodeId("n03"): 500}) == {}


def test_a_slow_link_is_found_and_its_ends_are_not_blamed() -> None:
    pairs = matrix(8) | {link(2, 5): 300_000}
    assert fit.slow_nodes(pairs, kinds(8)) == {}
    assert fit.slow_links(pairs, {}, {}) == {link(2, 5): 300}


def test_links_between_racks_are_compared_with_each_other() -> None:
    racks = {node: "m1" if index < 4 else "m2" for index, node in enumerate(nodes_of(8))}
    pairs = {
        pair: FAST if racks[pair[0]] == racks[pair[1]] else FAST // 2 for pair in matrix(8)
    } | {link(0, 7): 200_000}
    assert fit.slow_links(pairs, racks, {}) == {link(0, 7): 400}


def test_a_block_with_few_pairs_is_judged_with_all_pairs_between_racks() -> None:
    names = ["m1"] * 4 + ["m2"] * 4 + ["m3"]
    racks = dict(zip(nodes_of(9), names, strict=True))
    pairs = {pair: FAST if racks[pair[0]] == racks[pair[1]] else FAST // 2 for pair in matrix(9)}
    sparse = {pair: value for pair, value in pairs.items() if pair[1] != NodeId("n08")} | {
        link(0, 8): 500_000,
        link(4, 8): 500_000,
        link(5, 8): 100_000,
    }
    assert fit.slow_links(sparse, racks, {}) == {link(5, 8): 400}


def test_nodes_of_another_kind_are_no_measure() -> None:
    capacity = {f"n{number:02}": FAST // 4 for number in range(4, 8)}
    mixed = {node: "old" if node in capacity else "new" for node in nodes_of(8)}
    assert fit.slow_nodes(matrix(8, capacity), mixed) == {}


def test_too_few_nodes_or_partners_give_no_verdict() -> None:
    assert fit.slow_nodes(matrix(3, {"n02": 1}), kinds(3)) == {}
    few = {pair: value for pair, value in matrix(8).items() if NodeId("n07") not in pair}
    few[link(0, 7)] = few[link(1, 7)] = 1_000
    assert fit.slow_nodes(few, kinds(8)) == {}
    assert fit.slow_links({link(0, 1): 5}, {}, {}) == {}
    assert fit.slow_nodes(dict.fromkeys(matrix(5), 0), kinds(5)) == {}


def test_where_values_scatter_the_limit_is_lower() -> None:
    """A part of 780 is a suspect among equal values, and none where all values scatter."""
    scattered = [700, 780, 860, 940, 1_000, 1_060, 1_140, 1_220, 1_300]
    pairs = dict(zip(matrix(10), [*[900, 1_000, 1_100] * 15], strict=True))
    assert fit.slow_links(pairs, {}, {}) == {}
    assert fit.deviation(scattered) == 140


def test_a_baseline_follows_its_values_and_knows_their_spread() -> None:
    baseline = Baseline()
    for value in (1_000, 1_000, 1_040, 960, 1_000):
        baseline = updated(baseline, value)
    assert 980 <= baseline.usual <= 1_020
    assert 0 < baseline.spread < 40
    assert baseline.values == VALUES_MIN
    assert not is_below(baseline, 920)
    assert is_below(baseline, 800)


def test_a_baseline_of_few_values_rules_nothing_out() -> None:
    assert not is_below(updated(Baseline(), 1_000), 1)


def test_a_node_below_its_own_baseline_is_a_suspect_although_its_kind_has_one_node() -> None:
    usual = {node: Baseline(FAST, 10_000, 9) for node in nodes_of(8)}
    alone = {node: str(node) for node in nodes_of(8)}
    verdict = judge(matrix(8, {"n03": 700_000}), alone, usual)
    assert verdict.nodes == {NodeId("n03"): 700}
    assert verdict.slow == {} and not verdict.shifted


def test_a_fall_of_most_nodes_is_a_change_of_the_fabric() -> None:
    usual = {node: Baseline(3 * FAST, 10_000, 9) for node in nodes_of(8)}
    verdict = judge(matrix(8), kinds(8), usual)
    assert verdict.shifted and verdict.nodes == {}


def test_a_suspect_node_is_in_no_measured_rack() -> None:
    verdict = judge(matrix(8, {"n03": 500_000}), kinds(8), {})
    assert NodeId("n03") not in verdict.racks
    assert verdict.racks[NodeId("n00")] == verdict.racks[NodeId("n07")] == "m1"


def test_a_confirmation_measures_the_best_pairs_of_a_node_and_the_link_itself() -> None:
    pairs = matrix(8, {"n03": 500_000}) | {link(2, 5): 300_000, link(0, 3): 510_000}
    verdict = judge(pairs, kinds(8), {})
    targets = suspects(verdict, nodes_of(8))
    assert targets == ("n03", "n02 n05")
    wanted = again(verdict, pairs, targets)
    assert wanted[0] == link(0, 3) and wanted[-1] == link(2, 5)
    assert len(wanted) == BEST_PAIRS + 1
    assert suspects(verdict, [NodeId("n02"), NodeId("n04")]) == ()


def test_a_link_has_a_name() -> None:
    assert link_of(link_name(link(1, 2))) == link(1, 2)
