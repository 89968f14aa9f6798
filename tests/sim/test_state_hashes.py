"""Hashes of the state in simulated clusters: every leader records those of a new fold."""

from typing import Final

import pytest
from msgspec.structs import replace

from libs.common.folds import job_fold
from tests.sim import faults, planted_hashes
from tests.sim.checkers.state_hashes_agree import StateHashesAgree
from tests.sim.world import simulate

EVERY: Final = 32
SEEDS: Final = range(6)
WITHIN: Final = 4


def hashed(seed: int) -> faults.Plan:
    return replace(faults.plan(seed), hash_every=EVERY)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_leader_records_the_hashes_of_a_new_fold(seed: int) -> None:
    found = simulate(hashed(seed)).found
    assert found is None, found


def test_leaders_record_the_hashes_of_a_new_fold_when_ended_jobs_leave_the_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # More than may end in one commit.
    monkeypatch.setattr(job_fold, "ENDED_JOBS_KEPT", 8)
    found = simulate(hashed(0), (StateHashesAgree,)).found
    assert found is None, found


def test_a_fold_that_diverges_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted_hashes.a_fold_diverges_and_no_member_compares(monkeypatch)
    for seed in range(WITHIN):
        found = simulate(hashed(seed), (StateHashesAgree,)).found
        if found is not None:
            assert (found.checker, "port_last" in found.message) == ("state_hashes_agree", True)
            return
    pytest.fail(f"{WITHIN} seeds do not find that a fold diverges")
