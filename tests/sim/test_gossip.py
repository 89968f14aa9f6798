"""The loss of the control plane must not end the fleet's jobs, and a cut-off node must not profit
from that rule.
"""

from collections.abc import Callable

import pytest

from libs.common import facts as f
from tests.sim import faults, planted_leases
from tests.sim.checkers import ALL
from tests.sim.faults import APART, CUT, LONG_LEASE_MS, OUTAGE, Blow, Plan
from tests.sim.loop import run
from tests.sim.seeds import first_found
from tests.sim.weather import Rates
from tests.sim.world import World, _run

SEEDS = range(3)
LEASES_LONG = 3 * LONG_LEASE_MS / 1e3
SOON_S = 6.0
# Seeds within which a planted bug must be found.
WITHIN = 12
# In some of these a job of the node that is cut off is long enough to be caught alive.
LONG_JOBS = range(24, 24 + WITHIN)
FIVE = (2, 2, 2, 2, 2)
ONE_AFTER_ANOTHER = tuple(
    Blow(at_s, APART, node, 60.0) for node, at_s in (("n1", 3.0), ("n2", 3.0), ("n3", 17.0))
)


def ran(seed: int, *blows: Blow, nodes: tuple[int, ...] = (2, 2, 4, 2)) -> World:
    """One run with these blows and no other fault."""
    plan = Plan(
        seed=seed,
        rates=Rates(),
        blows=tuple(sorted(blows)),
        storm_s=max(blow.at_s + blow.length_s for blow in blows),
        skew_max_s=0.0,
        nodes=nodes,
        lease_ms=LONG_LEASE_MS,
    )
    world, _ = run(_run(plan, ALL))
    return world


def lived(seed: int, *blows: Blow, nodes: tuple[int, ...] = (2, 2, 4, 2)) -> World:
    """One run in which every rule holds."""
    world = ran(seed, *blows, nodes=nodes)
    assert world.found is None, f"seed {seed}: {world.found}"
    return world


def recorded(world: World, kind: type[f.Fact]) -> list[f.Fact]:
    return [
        fact
        for entry in world.stream.entries
        for fact in f.decode(entry.data).facts
        if isinstance(fact, kind)
    ]


def lost(world: World) -> list[f.NodeLost]:
    return [fact for fact in recorded(world, f.NodeLost) if isinstance(fact, f.NodeLost)]


def expired(world: World) -> list[f.JobFinished]:
    found = [fact for fact in recorded(world, f.JobFinished) if isinstance(fact, f.JobFinished)]
    return [fact for fact in found if fact.reason in ("lease_expired", "supervisor_lost")]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_attempt_ends_because_the_whole_control_plane_is_silent_for_longer_than_a_lease(
    seed: int,
) -> None:
    world = lived(seed, Blow(SOON_S, OUTAGE, "control", LEASES_LONG))
    assert world.weather.counts["lease_extended_by_peers"] >= 4
    assert expired(world) == lost(world) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_an_agent_that_is_started_again_meanwhile_has_its_roster_and_goes_on(seed: int) -> None:
    dead = [
        Blow(SOON_S + at_s, faults.AGENT_DEAD, f"agent-n{node}", 1.0)
        for node, at_s in ((0, 1.0), (1, 11.0), (3, 20.0))
    ]
    world = lived(seed, Blow(SOON_S, OUTAGE, "control", LEASES_LONG), *dead)
    assert expired(world) == lost(world) == []


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", [CUT, APART])
def test_a_minority_that_no_scheduler_answers_stops_and_runs_elsewhere(
    kind: str, seed: int
) -> None:
    """Cut off from all, or seeing peers that are renewed.

    The checkers hold that nothing of it lives when it is lost.
    """
    world = lived(seed, Blow(SOON_S, kind, "n3", LEASES_LONG))
    assert [fact.node_id for fact in lost(world)] == ["n3"]
    assert "lease_extended_by_peers" not in world.weather.counts


@pytest.mark.parametrize("seed", SEEDS)
def test_nodes_that_were_lost_one_after_another_do_not_keep_the_next_one_alive(seed: int) -> None:
    """They are still of the roster, see it, and are not renewed; the checkers hold that what is
    lost is dead.
    """
    lived(seed, *ONE_AFTER_ANOTHER, nodes=FIVE)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_majority_that_no_scheduler_answers_goes_on(seed: int) -> None:
    world = lived(seed, *(Blow(SOON_S, APART, node, LEASES_LONG) for node in ("n1", "n2", "n3")))
    assert expired(world) == lost(world) == []


@pytest.mark.parametrize(
    "plant",
    [
        planted_leases.a_lease_is_extended_without_a_majority,
        planted_leases.renewed_peers_count_for_the_majority,
    ],
)
def test_a_planted_bug_of_this_rule_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    runs = (ran(seed, Blow(SOON_S, APART, "n3", LEASES_LONG)) for seed in LONG_JOBS)
    assert first_found(runs).checker == "lost_only_after_a_lease"


def test_planted_loss_of_nodes_by_their_silence_alone_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted_leases.a_node_is_lost_by_its_own_silence_alone(monkeypatch)
    runs = (ran(seed, *ONE_AFTER_ANOTHER, nodes=FIVE) for seed in range(WITHIN))
    assert first_found(runs).checker == "lost_only_after_a_lease"
