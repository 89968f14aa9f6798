"""A gateway that follows the log stores snapshots, and every process starts from the newest one:
each holds the log and nothing else.
"""

from typing import Final

import pytest
from msgspec.structs import replace

from tests.sim import faults, planted_log
from tests.sim.faults import Plan
from tests.sim.seeds import first_found, hold
from tests.sim.world import simulate

SEEDS: Final = range(2)
WITHIN: Final = range(10)
EVERY: Final = 10


def with_snapshots(seed: int) -> Plan:
    return replace(faults.plan(seed), snapshot_every=EVERY)


def test_every_rule_holds_where_processes_start_from_a_gateways_snapshot() -> None:
    hold(map(with_snapshots, SEEDS))


def test_a_planted_follower_that_stores_unacknowledged_facts_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted_log.a_follower_stores_what_the_log_has_not_acknowledged(monkeypatch)
    found = first_found(simulate(with_snapshots(seed)) for seed in WITHIN)
    assert found.checker == "snapshots_hold_the_log", found
