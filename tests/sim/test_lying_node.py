"""One node's key is in an attacker's hands: the other nodes' jobs go on, all readers agree, and a
silent node is lost all the same.
"""

from collections.abc import Callable

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.reading import read_alone
from services.scheduler.leases.leases import Leases
from tests.sim import faults, liar, planted_lies
from tests.sim.checkers import ALL
from tests.sim.faults import Blow, Plan
from tests.sim.loop import run
from tests.sim.seeds import first_found, stormy
from tests.sim.weather import Rates
from tests.sim.world import World, _run, simulate

# Seeds within which a reader that trusts a node must be found.
WITHIN = 3
LIES = Blow(2.0, faults.LYING, "n0", faults.STORM_S)


def one_liar(seed: int) -> Plan:
    """A node lies all the time, and the scheduler stops as planned, which gives the others a long
    lease.
    """
    stop = Blow(6.0 + seed % 5, faults.PLANNED, f"n{1 + seed % 3}", 0.05)
    return Plan(
        seed=seed,
        rates=Rates(),
        blows=(LIES, stop),
        storm_s=2.0 + faults.STORM_S,
        skew_max_s=0.0,
        nodes=(2, 2, 4, 2),
    )


def one_liar_and_a_silent_node(seed: int) -> World:
    """The agent of n1 is dead for longer than any lease, while n0 sends heartbeats in its name."""
    dead = Blow(6.0 + seed % 5, faults.AGENT_DEAD, "agent-n1", 15.0)
    plan = Plan(
        seed=seed,
        rates=Rates(),
        blows=(LIES, dead),
        storm_s=2.0 + faults.STORM_S,
        skew_max_s=0.0,
        nodes=(2, 2, 4, 2),
    )
    return run(_run(plan, ALL))[0]


def one_liar_in_an_outage(seed: int, patch: pytest.MonkeyPatch) -> World:
    """The control plane is away for longer than a lease, and n0 floods the others and sends on what
    they asked it.
    """
    outage = Blow(6.0 + seed % 3, faults.OUTAGE, "control", 2.5 * faults.LONG_LEASE_MS / 1e3)
    plan = Plan(
        seed=seed,
        rates=Rates(),
        blows=(LIES, outage),
        storm_s=outage.at_s + outage.length_s,
        skew_max_s=0.0,
        nodes=(2, 2, 4, 2),
        lease_ms=faults.LONG_LEASE_MS,
    )
    patch.setattr(liar, "SENT_ON_EVERY_S", 0.02)
    return run(_run(plan, ALL))[0]


def expired(world: World, node_id: str) -> list[f.JobFinished]:
    entries = [entry for entry in world.stream.entries if entry.subject != subjects.node(node_id)]
    facts = [fact for entry in entries for fact in read_alone(entry.subject, entry.data).facts]
    return [
        fact for fact in facts if isinstance(fact, f.JobFinished) and fact.reason == "lease_expired"
    ]


def is_lost(world: World, node_id: str) -> bool:
    entries = world.stream.entries
    facts = [fact for entry in entries for fact in read_alone(entry.subject, entry.data).facts]
    return any(isinstance(fact, f.NodeLost) and fact.node_id == node_id for fact in facts)


@pytest.mark.attack
@pytest.mark.parametrize("seed", range(5))
def test_node_that_lies_harms_no_other_node(seed: int) -> None:
    result = simulate(one_liar(seed))
    assert result.found is None
    assert result.faults["lie"] > 8


@pytest.mark.attack
@pytest.mark.parametrize("seed", range(4))
def test_heartbeats_in_its_name_keep_no_silent_node(seed: int) -> None:
    world = one_liar_and_a_silent_node(seed)
    assert world.found is None
    assert is_lost(world, "n1")


@pytest.mark.attack
@pytest.mark.parametrize("seed", range(4))
def test_datagrams_of_a_node_that_lies_end_no_lease_of_others(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = one_liar_in_an_outage(seed, monkeypatch)
    assert world.found is None
    assert world.weather.counts["lease_extended_by_peers"] >= 3
    assert expired(world, "n0") == []


def test_planted_questions_without_a_recipient_end_leases_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted_lies.questions_name_no_recipient(monkeypatch)
    assert any(expired(one_liar_in_an_outage(seed, monkeypatch), "n0") for seed in range(4))


def test_a_part_of_the_random_runs_has_a_node_that_lies() -> None:
    liars = [blow for plan in stormy(0, 400) for blow in plan.blows if blow.kind == faults.LYING]
    assert 60 <= len(liars) <= 140


@pytest.mark.parametrize(
    "plant, checker",
    [
        (planted_lies.untrusted_commits_stop_readers, "no_service_dies_of_a_bug"),
        (planted_lies.numbers_are_believed, "no_service_dies_of_a_bug"),
        (planted_lies.a_device_goes_to_the_last_that_lists_it, "devices_stay_with_their_node"),
    ],
)
def test_planted_trust_in_commits_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], checker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert first_found(simulate(one_liar(seed)) for seed in range(WITHIN)).checker == checker


def test_planted_trust_in_heartbeats_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted_lies.heartbeats_may_name_another_node(monkeypatch)
    # The node's own silence about its leases would show it too.
    monkeypatch.setattr(Leases, "is_deaf", lambda self, cluster, node_id, now: False)
    assert not is_lost(one_liar_and_a_silent_node(0), "n1")
