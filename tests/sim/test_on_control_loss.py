"""Jobs that ignore their lease: they survive their node's silence.

They run elsewhere only after the node or an operator has reported their end.
"""

from collections.abc import Iterator

import pytest

from libs.common import facts as f
from libs.common.life.node_life import DECLARED_DEAD
from tests.sim import faults, workload
from tests.sim.checkers import ALL
from tests.sim.faults import Blow, Plan
from tests.sim.loop import run
from tests.sim.planted_leases import a_job_that_ignores_its_lease_is_requeued_too_early
from tests.sim.seeds import first_found
from tests.sim.weather import Rates
from tests.sim.world import World, _run

SEEDS = range(4)
SOON_S = 6.0
NODES = (2, 2, 4, 2)


@pytest.fixture(autouse=True)
def every_job_goes_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(workload, "GOES_ON", 1.0)
    yield


def ran(seed: int, *blows: Blow) -> World:
    """One run with these blows and no other fault."""
    storm_s = max(blow.at_s + blow.length_s for blow in blows)
    plan = Plan(seed=seed, rates=Rates(), blows=blows, storm_s=storm_s, skew_max_s=0.0, nodes=NODES)
    world, _ = run(_run(plan, ALL))
    return world


def lived(seed: int, *blows: Blow) -> World:
    """One run in which every rule holds."""
    world = ran(seed, *blows)
    assert world.found is None, f"seed {seed}: {world.found}"
    return world


def recorded(world: World) -> list[f.AnyFact | f.Unknown]:
    return [fact for entry in world.stream.entries for fact in f.decode(entry.data).facts]


def reasons(world: World) -> list[str]:
    """Return the reason of each loss of n2, the node that always runs something."""
    return [
        fact.reason
        for fact in recorded(world)
        if isinstance(fact, f.NodeLost) and fact.node_id == "n2"
    ]


def goes_on(fact: f.JobStarted | f.JobFinished) -> bool:
    """Return whether the job is not a model's replica; every other job of these runs ignores its
    lease.
    """
    return fact.job_id.startswith("job-")


def given_up(world: World) -> list[tuple[str, int]]:
    """Return the attempts that began on n2 and ended as lost."""
    facts = recorded(world)
    began = {
        (fact.job_id, fact.attempt)
        for fact in facts
        if isinstance(fact, f.JobStarted) and fact.node_id == "n2" and goes_on(fact)
    }
    over = [
        fact
        for fact in facts
        if isinstance(fact, f.JobRequeued | f.JobClosed) and fact.reason == "node_lost"
    ]
    return [(fact.job_id, fact.attempt) for fact in over if (fact.job_id, fact.attempt) in began]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_silent_node_keeps_jobs_that_ignore_their_lease(seed: int) -> None:
    """Cut off for longer than any lease, and its agent away beside that."""
    world = lived(
        seed,
        Blow(SOON_S, faults.CUT, "n2", 20.0),
        Blow(SOON_S + 3.0, faults.AGENT_DEAD, "agent-n2", 12.0),
    )
    assert reasons(world) == ["silent"]
    ends = [
        fact.reason for fact in recorded(world) if isinstance(fact, f.JobFinished) and goes_on(fact)
    ]
    assert given_up(world) == [] and "lease_expired" not in ends


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_answers_after_its_power_cut_says_what_ended_there(seed: int) -> None:
    world = lived(seed, Blow(SOON_S, faults.POWER_CUT, "n2", 20.0))
    assert reasons(world) == ["silent"]
    assert given_up(world) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_comes_back_with_another_state_directory_waits_for_an_operator(
    seed: int,
) -> None:
    """Gone with its disk; or alive, and unknown to the agent that came."""
    world = lived(
        seed,
        Blow(SOON_S, faults.DISK_LOST, "n2", 20.0),
        Blow(SOON_S + 25.0, faults.REINSTALLED, "agent-n2", 1.0),
    )
    assert DECLARED_DEAD in reasons(world)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_is_declared_dead_gives_up_what_it_held_while_it_is_away(seed: int) -> None:
    world = lived(seed, Blow(SOON_S, faults.DEAD, "n2", 40.0))
    assert reasons(world) == ["silent", DECLARED_DEAD]


def test_jobs_of_a_node_declared_dead_run_elsewhere() -> None:
    assert any(given_up(lived(seed, Blow(SOON_S, faults.DEAD, "n2", 40.0))) for seed in SEEDS)


def test_planted_requeue_of_jobs_that_ignore_their_lease_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_job_that_ignores_its_lease_is_requeued_too_early(monkeypatch)
    found = first_found(ran(seed, Blow(SOON_S, faults.CUT, "n2", 20.0)) for seed in SEEDS)
    assert found.checker in {
        "continue_waits_for_its_node",
        "at_most_one_attempt_alive",
        "lost_only_after_a_lease",
    }
