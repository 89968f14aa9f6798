"""After a planned stop nodes are lost as ever, once they have said that their long lease is over: a
check that something *does* happen.

And a node that is installed again frees nothing that may be alive.
"""

import pytest

from libs.common import facts as f
from tests.sim import planted_leases
from tests.sim.checkers import ALL
from tests.sim.checkers.checker import Checker
from tests.sim.faults import AGENT_DEAD, LEASE_MS, PLANNED, POWER_CUT, REINSTALLED, Blow, Plan
from tests.sim.seeds import first_found
from tests.sim.settings import SETTINGS
from tests.sim.weather import Rates
from tests.sim.world import Result, simulate

SEEDS = range(5)
NODES = (2, 2, 4, 2)
STOP_S = 5.0
DIES_S = 9.0
# From the death: the next term's beginning is a moment before, and the silence is looked at ten
# times in a second.
SOON_S = (LEASE_MS + SETTINGS.margin_ms) / 1e3 + 3.0


def ran(seed: int, blow: Blow, *more: type[Checker]) -> Result:
    """A planned stop and what comes after it, and no other fault."""
    blows = (Blow(STOP_S, PLANNED, "", 0.05), blow)
    return simulate(
        Plan(
            seed=seed,
            rates=Rates(),
            blows=blows,
            storm_s=blow.at_s + blow.length_s,
            skew_max_s=0.0,
            nodes=NODES,
        ),
        (*ALL, *more),
    )


class LostSoon(Checker):
    """The node that died is recorded as lost in time, although the long lease of the stop would
    still hold.
    """

    lost_s = 0.0

    def after(
        self, cluster: object, fact: object, stamp: object, commit: object, change: object
    ) -> None:
        if isinstance(fact, f.NodeLost):
            self.lost_s = self.world.loop.now

    def finished(self) -> None:
        if not DIES_S < self.lost_s < DIES_S + SOON_S:
            self.fail(f"the node that died at {DIES_S} s was lost at {self.lost_s} s")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_dies_after_a_planned_stop_is_lost_in_time(seed: int) -> None:
    assert STOP_S + SETTINGS.stop_lease_ms / 1e3 > DIES_S + SOON_S
    assert ran(seed, Blow(DIES_S, POWER_CUT, "n3", 25.0), LostSoon).found is None


def test_planted_false_report_of_an_ended_lease_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted_leases.a_long_lease_is_reported_shorter_than_it_is(monkeypatch)
    dead = Blow(DIES_S, AGENT_DEAD, "agent-n3", 25.0)
    found = first_found(ran(seed, dead) for seed in SEEDS)
    assert found.checker == "lost_only_after_a_lease"


def reinstalled(seed: int) -> Plan:
    """Agents that begin with an empty directory while the supervisors of the last ones live: one,
    or most of them at once.
    """
    blows = tuple(
        Blow(6.0 + index, REINSTALLED, f"agent-n{index}", 0.05)
        for index in range(3 if seed % 2 else 1)
    )
    return Plan(seed=seed, rates=Rates(), blows=blows, storm_s=12.0, skew_max_s=0.0, nodes=NODES)


@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_of_the_previous_agent_end_before_one_with_an_empty_directory_is_accepted(
    seed: int,
) -> None:
    assert simulate(reinstalled(seed)).found is None


def test_planted_release_by_an_empty_state_directory_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted_leases.an_empty_directory_frees_attempts_of_the_old_one(monkeypatch)
    found = first_found(simulate(reinstalled(seed)) for seed in SEEDS)
    assert found.checker in {
        "at_most_one_attempt_alive",
        "continue_waits_for_its_node",
        "gpu_never_shared",
        "mig_placements_legal",
    }
