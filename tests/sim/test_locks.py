"""Locks in simulated clusters: never two holders, over restarts, take-overs, clock jumps and lost
answers.
"""

from collections.abc import Callable
from typing import Final

import pytest

from tests.sim import planted_locks
from tests.sim.lock_users import with_locks
from tests.sim.seeds import first_found
from tests.sim.world import simulate

SEEDS: Final = range(5)
Plant = Callable[[pytest.MonkeyPatch], None]
# Seeds within which each planted bug must be found.
WITHIN: Final[dict[Plant, range]] = {
    planted_locks.a_lock_expires_by_the_wall_clock: range(12),
    planted_locks.a_lock_expires_in_half_its_time: range(7, 12),
    planted_locks.a_holder_works_on_without_renewals: range(3, 12),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_lock_has_one_holder(seed: int) -> None:
    found = simulate(with_locks(seed)).found
    assert found is None, found


@pytest.mark.parametrize("plant", WITHIN, ids=lambda plant: plant.__name__)
def test_a_planted_bug_of_locks_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = first_found(simulate(with_locks(seed)) for seed in WITHIN[plant])
    assert found.checker == "lock_has_one_holder"
