"""The lease profile changes while nodes and schedulers fail.

What an agent was granted before counts until it is over.
"""

import pytest

from libs.common import facts as f
from libs.common.timing import DEFAULT, FAST
from tests.sim import planted_leases
from tests.sim.checkers import ALL
from tests.sim.checkers.checker import Checker
from tests.sim.faults import CUT, KILL, LONG_LEASE_MS, Blow, Plan
from tests.sim.profiles import PROFILE
from tests.sim.seeds import first_found
from tests.sim.weather import Rates
from tests.sim.world import Result, simulate

SEEDS = range(4)
NODES = (2, 2, 4, 2)
CUT_S = 22.0


def ran(seed: int, blows: tuple[Blow, ...], *more: type[Checker]) -> Result:
    plan = Plan(
        seed=seed,
        rates=Rates(),
        blows=tuple(sorted(blows)),
        storm_s=max(blow.at_s + blow.length_s for blow in blows) + 1.0,
        skew_max_s=0.0,
        nodes=NODES,
        lease_ms=LONG_LEASE_MS,
    )
    return simulate(plan, (*ALL, *more))


def shortened(seed: int) -> tuple[Blow, ...]:
    """A node is cut off with a lease of the former profile, and the next scheduler begins."""
    at_s = 5.0 + seed / 10
    return (
        Blow(at_s, PROFILE, FAST, 0.0),
        Blow(at_s + 0.3, CUT, "n2", CUT_S),
        Blow(at_s + 0.4, KILL, "scheduler-a", 0.05),
        Blow(at_s + 0.4, KILL, "scheduler-b", 0.05),
    )


class LostSoon(Checker):
    """Once every agent goes by the fast profile, a node is lost within its times."""

    settled_s = lost_s = 0.0

    def after(
        self, cluster: object, fact: object, stamp: object, commit: object, change: object
    ) -> None:
        if isinstance(fact, f.LeaseProfileSettled):
            self.settled_s = self.world.loop.now
        if isinstance(fact, f.NodeLost):
            self.lost_s = self.world.loop.now

    def finished(self) -> None:
        if not self.settled_s or not 30.0 + 3.5 < self.lost_s < 30.0 + 5.0:
            self.fail(f"settled at {self.settled_s} s, the node cut off at 30 s lost {self.lost_s}")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lease_of_the_former_profile_counts_in_the_next_term(seed: int) -> None:
    assert ran(seed, shortened(seed)).found is None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lost_node_is_noticed_sooner_once_all_agents_go_by_the_fast_profile(seed: int) -> None:
    blows = (Blow(4.0, PROFILE, FAST, 0.0), Blow(30.0, CUT, "n2", 12.0))
    assert ran(seed, blows, LostSoon).found is None


@pytest.mark.parametrize("moment", range(4))
def test_the_profile_may_be_chosen_back_at_any_moment(moment: int) -> None:
    blows = (
        Blow(4.0, PROFILE, FAST, 0.0),
        Blow(5.0 + 4 * moment, PROFILE, DEFAULT, 0.0),
        Blow(5.5 + 4 * moment, CUT, "n2", CUT_S),
    )
    assert ran(moment, blows).found is None


def test_planted_profile_that_counts_at_once_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted_leases.a_new_profile_counts_at_once(monkeypatch)
    found = first_found(ran(seed, shortened(seed)) for seed in SEEDS)
    assert found.checker == "lost_only_after_a_lease"
