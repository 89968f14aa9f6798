"""Nodes come late and are taken out while jobs run and leases are open, and no count that others
rely on changes in one step.
"""

import asyncio

import pytest

from libs.common import facts as f
from libs.common.model import NodeId
from libs.common.state.cluster import is_removed
from tests.sim import planted_leases
from tests.sim.checkers import ALL
from tests.sim.faults import APART, CUT, LATE, LONG_LEASE_MS, PLANNED, REMOVED, Blow, Plan
from tests.sim.loop import VirtualLoop, run
from tests.sim.test_gossip import FIVE, LEASES_LONG, lived, lost, ran, recorded
from tests.sim.weather import Rates
from tests.sim.world import World

SEEDS = range(6)
# Seeds within which a planted bug must be found: a job must be long enough to be caught alive.
WITHIN = range(24, 36)
LEAVES = "n4"
# Two nodes and the one that leaves hear each other and no scheduler: three of five, as the agents
# count.
APART_WITH_IT = (
    Blow(5.0, APART, "n0", LEASES_LONG),
    Blow(5.0, APART, "n1", LEASES_LONG),
    Blow(5.0, APART, LEAVES, LEASES_LONG),
    Blow(5.5, REMOVED, LEAVES, 0.0),
)


def without_jobs(back_s: float) -> World:
    """A node hears nothing of a removal and of a planned stop, and is back long after all else is
    over.
    """
    blows = (
        Blow(3.0, APART, "n0", back_s - 3.0, lasts=True),
        Blow(5.0, REMOVED, LEAVES, 0.0),
        Blow(7.0, PLANNED, "", 0.05),
    )

    async def idle() -> World:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        world = World(
            loop,
            Plan(
                seed=0,
                rates=Rates(),
                blows=blows,
                storm_s=10.0,
                skew_max_s=0.0,
                nodes=FIVE,
                lease_ms=LONG_LEASE_MS,
            ),
            ALL,
        )
        world.acts.clear()
        await world.run()
        return world

    return run(idle())[0]


def kinds(world: World) -> list[type[f.AnyFact | f.Unknown]]:
    return [type(fact) for entry in world.stream.entries for fact in f.decode(entry.data).facts]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_came_late_and_one_that_is_taken_out_cost_no_job_its_life(seed: int) -> None:
    world = lived(
        seed, Blow(0.0, LATE, "agent-n0", 6.0), Blow(9.0, REMOVED, LEAVES, seed % 2), nodes=FIVE
    )
    assert is_removed(world.reference, NodeId(LEAVES))
    assert lost(world) == []
    stopped = [
        fact
        for fact in recorded(world, f.JobStopOrdered)
        if isinstance(fact, f.JobStopOrdered) and fact.reason == "node_removed"
    ]
    assert not stopped or seed % 2 == 0


def test_a_node_is_not_removed_while_one_that_believes_it_is_away() -> None:
    """Only when that one is lost."""
    world = lived(0, Blow(5.0, CUT, "n0", LEASES_LONG), Blow(6.0, REMOVED, LEAVES, 0.0), nodes=FIVE)
    kinds = [
        fact
        for entry in world.stream.entries
        for fact in f.decode(entry.data).facts
        if isinstance(fact, f.NodeLost | f.NodeRemoved)
    ]
    assert [(type(fact), fact.node_id) for fact in kinds] == [
        (f.NodeLost, "n0"),
        (f.NodeRemoved, LEAVES),
    ]


@pytest.mark.parametrize(
    ("back_s", "then"),
    [(30.0, [f.NodeRemoved]), (40.0, [f.NodeLost, f.NodeRemoved, f.NodeReturned])],
)
def test_a_node_is_removed_once_one_with_a_long_lease_is_back_or_lost(
    back_s: float, then: list[type[f.Fact]]
) -> None:
    """Longer than a run that is otherwise over may take to come to rest."""
    world = without_jobs(back_s)
    assert world.found is None, world.found
    assert [
        kind for kind in kinds(world) if kind in (f.NodeLost, f.NodeRemoved, f.NodeReturned)
    ] == then


def test_planted_scheduler_that_never_removes_a_node_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted_leases.a_node_that_leaves_is_never_removed(monkeypatch)
    found = without_jobs(30.0).found
    assert found is not None
    assert found.checker == "removed_only_when_empty"


@pytest.mark.parametrize("seed", SEEDS)
def test_agents_that_believe_a_node_that_leaves_are_not_lost_without_it(seed: int) -> None:
    world = lived(seed, *APART_WITH_IT, nodes=FIVE)
    assert world.weather.counts["lease_extended_by_peers"] > 0
    assert lost(world) == []


def test_planted_count_that_changes_in_one_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted_leases.a_node_leaves_the_schedulers_count_in_one_step(monkeypatch)
    for seed in WITHIN:
        found = ran(seed, *APART_WITH_IT, nodes=FIVE).found
        if found is not None:
            print(f"found by {found.checker} in seed {seed}: {found.message}")
            return
    pytest.fail("no seed finds that the scheduler counts without a node that agents believe")
