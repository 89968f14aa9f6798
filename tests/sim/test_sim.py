"""The seeds of `make test`: every rule holds, the checkers have much to look at, and a seed is one
run, with the same bytes in every process.
"""

import pytest

from tests.sim import faults, regressions
from tests.sim.checkers.backfill_never_delays_the_head import BackfillNeverDelaysTheHead
from tests.sim.checkers.reservations_are_kept import ReservationsAreKept
from tests.sim.result import Result
from tests.sim.seeds import digest_in_child, hold, stormy
from tests.sim.world import simulate

TWICE = 3
SEEDS = 13
CALM = 4
FAULTS_MIN = 5
JOBS_MIN = 20
NODES_MIN = 4
LOOKED_AT_MIN = 5


class Storms:
    """The results of the seeds, and how often two checkers found something to look at."""

    def __init__(self) -> None:
        self.passed = 0
        self.kept = 0
        self.results: list[Result] = []

    def run(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(BackfillNeverDelaysTheHead, "finished", lambda at: self._passed(at))
            patch.setattr(ReservationsAreKept, "finished", lambda at: self._kept(at))
            self.results = [simulate(plan) for plan in stormy(0, SEEDS)]

    def _passed(self, checker: BackfillNeverDelaysTheHead) -> None:
        self.passed += checker.passed

    def _kept(self, checker: ReservationsAreKept) -> None:
        self.kept += checker.kept


@pytest.fixture(scope="module")
def storms() -> Storms:
    made = Storms()
    made.run()
    return made


def test_every_rule_holds_in_the_first_seeds(storms: Storms) -> None:
    assert [result.found for result in storms.results] == [None] * SEEDS


def test_jobs_pass_the_first_one_that_waits(storms: Storms) -> None:
    """Else the checker of backfill would have nothing to look at."""
    assert storms.passed >= LOOKED_AT_MIN


def test_nodes_are_kept_for_others_where_jobs_are_placed(storms: Storms) -> None:
    assert storms.kept >= LOOKED_AT_MIN


def test_a_seed_has_many_jobs_nodes_and_faults(storms: Storms) -> None:
    for result, plan in zip(storms.results, stormy(0, SEEDS), strict=True):
        assert sum(result.faults.values()) >= FAULTS_MIN
        assert sum(result.ends.values()) >= JOBS_MIN
        assert len(plan.nodes) >= NODES_MIN


def test_every_rule_holds_without_a_fault() -> None:
    hold(faults.calm(seed) for seed in range(CALM))


@pytest.mark.parametrize("seed", [*reversed(regressions.SEEDS)])
def test_every_rule_holds_in_a_seed_that_once_found_a_bug(seed: int) -> None:
    hold([faults.plan(seed)])


def test_a_seed_gives_the_same_bytes_every_time() -> None:
    first, second = simulate(faults.plan(TWICE)), simulate(faults.plan(TWICE))
    assert first == second


def test_a_seed_gives_the_same_bytes_for_any_hash_order() -> None:
    assert (
        digest_in_child(TWICE, "1")
        == digest_in_child(TWICE, "2")
        == simulate(faults.plan(TWICE)).digest
    )
