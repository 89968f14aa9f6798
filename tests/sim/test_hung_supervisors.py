"""Supervisors hang while their node is silent: the lease watchdog ends their jobs.

Without a watchdog the jobs wait for their node.
"""

import pytest

from libs.common import facts as f
from libs.common.life import node_life
from tests.sim import faults, hangs, planted_leases
from tests.sim.checkers import ALL
from tests.sim.checkers.checker import Checker
from tests.sim.faults import Blow, Plan
from tests.sim.seeds import first_found
from tests.sim.weather import Rates
from tests.sim.world import Result, simulate

# Each has another kind of silence.
SEEDS = range(len(hangs.SILENCES))
NODES = (2, 2, 4, 2)
AT_S = 4.0
LENGTH_S = 13.0
# Longer than from the watchdog's end until supervisors hang.
ARMED = hangs.Fence(5, is_armed=True)
# So short that the node is lost before it is heard again.
NOT_ARMED = hangs.Fence(2, is_armed=False)


def ran(
    seed: int,
    lost: bool,
    *more: type[Checker],
    fence: hangs.Fence = hangs.NO_FENCE,
    reinstalled_s: float | None = None,
) -> Result:
    """Nothing but these faults. `reinstalled_s`: the agent gets an empty directory then."""
    silence = hangs.SILENCES[seed % len(hangs.SILENCES)]
    blows = hangs.hung_while_silent("n2", at_s=AT_S, length_s=LENGTH_S, silence=silence, lost=lost)
    if reinstalled_s is not None:
        blows.append((reinstalled_s, faults.REINSTALLED, "agent-n2", 0.05))
    plan = Plan(
        seed=seed,
        rates=Rates(),
        blows=tuple(Blow(*each) for each in sorted(blows)),
        storm_s=AT_S + LENGTH_S + 8.0,
        skew_max_s=0.0,
        nodes=NODES,
        fence=fence,
    )
    return simulate(plan, (*ALL, *more))


class LostOnce(Checker):
    """The node is declared lost, for the reason `wanted`."""

    wanted = node_life.SILENT
    reasons: tuple[str, ...] = ()

    def after(
        self, cluster: object, fact: object, stamp: object, commit: object, change: object
    ) -> None:
        if isinstance(fact, f.NodeLost):
            self.reasons = (*self.reasons, fact.reason)

    def finished(self) -> None:
        if self.reasons != (self.wanted,):
            self.fail(f"the node was lost as {self.reasons}, not once as {self.wanted}")


class LostUnguarded(LostOnce):
    wanted = node_life.UNGUARDED


@pytest.mark.parametrize("case", SEEDS)
def test_the_watchdog_ends_jobs_whose_supervisors_hang(case: int) -> None:
    """The agent has replaced the watchdog that hung first."""
    assert ran(case, False, LostOnce).found is None


@pytest.mark.parametrize("case", SEEDS)
def test_jobs_of_a_silent_node_without_watchdog_wait_for_it(case: int) -> None:
    assert ran(case, True, LostUnguarded).found is None


@pytest.mark.parametrize("case", SEEDS)
def test_jobs_of_a_silent_node_that_its_hardware_watchdog_resets_start_elsewhere(case: int) -> None:
    assert ran(case, True, LostOnce, fence=ARMED).found is None


@pytest.mark.parametrize("case", SEEDS)
def test_jobs_of_a_silent_node_whose_hardware_watchdog_is_not_armed_wait_for_it(case: int) -> None:
    """As under `muster leases fast` with the default time."""
    assert ran(case, True, LostUnguarded, fence=NOT_ARMED).found is None


@pytest.mark.parametrize("case", SEEDS)
@pytest.mark.parametrize("at_s", [AT_S + 2.0, AT_S + 9.0])
def test_jobs_of_an_agent_that_was_replaced_without_its_watchdog_wait_for_an_operator(
    case: int, at_s: float
) -> None:
    """The new agent has an empty directory: before the node is lost, and after it."""
    assert ran(case, True, reinstalled_s=at_s).found is None


def test_planted_trust_in_an_agent_that_replaced_an_unguarded_one_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted_leases.an_unguarded_agent_is_replaced_like_any_other(monkeypatch)
    found = first_found(ran(seed, True, reinstalled_s=AT_S + 9.0) for seed in SEEDS)
    assert found.checker in ("at_most_one_attempt_alive", "lost_only_after_a_lease")


def test_planted_trust_in_a_hardware_watchdog_that_is_not_armed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted_leases.the_setting_of_a_hardware_watchdog_proves_a_reset(monkeypatch)
    found = first_found(ran(seed, True, fence=NOT_ARMED) for seed in SEEDS)
    assert found.checker == "lost_only_after_a_lease"


def test_planted_missing_watchdog_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted_leases.no_watchdog_ends_jobs_of_hung_supervisors(monkeypatch)
    found = first_found(ran(seed, False) for seed in SEEDS)
    assert found.checker == "lost_only_after_a_lease"


def test_planted_trust_in_the_silence_of_an_unguarded_node_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted_leases.the_silence_of_an_unguarded_node_proves_its_end(monkeypatch)
    found = first_found(ran(seed, True) for seed in SEEDS)
    assert found.checker == "lost_only_after_a_lease"
