"""Leases in a cluster that splits in two, and in agents that freeze with an answer in hand: what is
lost is dead, and a bug in either half of the lease is found.
"""

from collections.abc import Callable
from typing import Final

import pytest

from tests.sim import planted_leases
from tests.sim.checkers import DEEP
from tests.sim.faults import LONG_LEASE_MS, Blow, Plan
from tests.sim.partitions import FREEZES, PARTITION
from tests.sim.seeds import first_found, hold
from tests.sim.weather import Rates
from tests.sim.world import Result, simulate

Plant = Callable[[pytest.MonkeyPatch], None]

NODES: Final = (2, 2, 4, 2)
# In these a job is long enough to be caught alive.
SEEDS: Final = (27,)
AT_S: Final = 6.0
LONG_S: Final = 22.0
WITHIN: Final = range(27, 35)
PLANTS: Final[dict[Plant, Blow]] = {
    planted_leases.a_deposed_scheduler_grants_leases: Blow(AT_S, PARTITION, "n3", LONG_S),
    planted_leases.a_lease_counts_from_its_answer: Blow(AT_S, FREEZES, "n3>14.0", 4.8),
}


def with_blow(seed: int, blow: Blow) -> Plan:
    """Return a run with this fault alone."""
    return Plan(
        seed=seed,
        rates=Rates(),
        blows=(blow,),
        storm_s=AT_S + LONG_S + 1.0,
        skew_max_s=0.0,
        nodes=NODES,
        lease_ms=LONG_LEASE_MS,
    )


def ran(seed: int, blow: Blow) -> Result:
    return simulate(with_blow(seed, blow), DEEP)


@pytest.mark.parametrize("beside", ["n3", "n1,n2,n3"])
def test_a_leader_without_the_log_keeps_no_node_alive_that_its_successor_declares_lost(
    beside: str,
) -> None:
    hold((with_blow(seed, Blow(AT_S, PARTITION, beside, LONG_S)) for seed in SEEDS), DEEP)


def test_an_agent_that_freezes_with_an_answer_has_no_longer_lease() -> None:
    hold((with_blow(seed, Blow(AT_S, FREEZES, "n3>14.0", 4.8)) for seed in SEEDS), DEEP)


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_of_leases_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = first_found(ran(seed, PLANTS[plant]) for seed in WITHIN)
    assert found.checker == "lost_only_after_a_lease", found
