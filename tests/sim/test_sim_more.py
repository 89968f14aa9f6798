"""Runs without a fault, and checks that storms contain what the checkers look at."""

import pytest

from tests.sim import faults
from tests.sim.checkers.backfill_never_delays_the_head import BackfillNeverDelaysTheHead
from tests.sim.checkers.reservations_are_kept import ReservationsAreKept
from tests.sim.seeds import hold, stormy
from tests.sim.world import simulate

CALM = 20
FAULTS_MIN = 5
JOBS_MIN = 20
NODES_MIN = 4
PASSED_MIN = 5


def test_every_rule_holds_without_a_fault() -> None:
    hold(faults.calm(seed) for seed in range(CALM))


def test_jobs_pass_the_first_one_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the checker of backfill would have nothing to look at."""
    passed: list[int] = []
    monkeypatch.setattr(
        BackfillNeverDelaysTheHead, "finished", lambda self: passed.append(self.passed)
    )
    hold(stormy(0, 5))
    assert sum(passed) >= PASSED_MIN


def test_nodes_are_kept_for_others_where_jobs_are_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    monkeypatch.setattr(ReservationsAreKept, "finished", lambda self: kept.append(self.kept))
    hold(stormy(5, 8))
    assert sum(kept) >= PASSED_MIN


def test_a_seed_has_many_jobs_nodes_and_faults() -> None:
    for plan in stormy(0, 5):
        result = simulate(plan)
        assert sum(result.faults.values()) >= FAULTS_MIN
        assert sum(result.ends.values()) >= JOBS_MIN
        assert len(plan.nodes) >= NODES_MIN
