"""The first half of the seeds of `make test`, and that a seed is one run: the same bytes in every
process.
"""

from tests.sim import faults, regressions
from tests.sim.seeds import digest_in_child, hold, stormy
from tests.sim.world import simulate

TWICE = 3


def test_every_rule_holds_in_seeds_0_to_15() -> None:
    hold(stormy(0, 16))


def test_every_rule_holds_in_the_seeds_that_once_found_a_bug() -> None:
    hold(faults.plan(seed) for seed in regressions.SEEDS)


def test_a_seed_gives_the_same_bytes_every_time() -> None:
    first, second = simulate(faults.plan(TWICE)), simulate(faults.plan(TWICE))
    assert first == second


def test_a_seed_gives_the_same_bytes_for_any_hash_order() -> None:
    assert (
        digest_in_child(TWICE, "1")
        == digest_in_child(TWICE, "2")
        == simulate(faults.plan(TWICE)).digest
    )
