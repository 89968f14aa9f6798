"""A tenant that asks for as much as it may: jobs of another tenant that fit are placed soon all the
same, counted in the run's own time.
"""

from collections.abc import Sequence
from typing import Final

import pytest

from libs.common import facts as f
from libs.common.change import Change, Stamp
from libs.common.facts import AnyFact, Commit, Unknown
from libs.common.model import JobId, JobSpec, TenantId
from libs.common.state.cluster import Cluster
from tests.sim import faults, greed, planted_loads, world
from tests.sim.behaviour import Behaviour
from tests.sim.checkers import ALL
from tests.sim.checkers.checker import Checker
from tests.sim.faults import Blow, Plan
from tests.sim.loop import run
from tests.sim.seeds import stormy
from tests.sim.weather import Rates
from tests.sim.workload import Act
from tests.sim.world import World, simulate

# Interval of the other tenant's jobs, each on one of many free devices.
EVERY_S: Final = 0.25
JOBS: Final = 100
NODES: Final = (4, 4, 4, 4)
PLACED_WITHIN_S: Final = 1.5
GREED: Final = Blow(1.0, faults.GREEDY, "greedy", 21.0)
# Seeds within which a planted bug must be found among all other faults.
WITHIN: Final = 60


class OthersArePlaced(Checker):
    """Each job of the other tenant is placed soon after the log has it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.since: dict[str, float] = {}

    def after(
        self,
        cluster: Cluster,
        fact: AnyFact | Unknown,
        stamp: Stamp,
        commit: Commit,
        change: Change,
    ) -> None:
        now = self.world.loop.now
        if isinstance(fact, f.JobSubmitted) and not greed.is_greedy(fact.job_id):
            self.since[fact.job_id] = now
        if isinstance(fact, f.JobPlaced):
            self.since.pop(fact.job_id, None)
        late = [job_id for job_id, since in self.since.items() if now - since > PLACED_WITHIN_S]
        if late:
            self.fail(f"{late[0]} fits and is not placed after {now - self.since[late[0]]:.2f} s")


def modest(seed: int, shape: object, storm_s: float) -> list[Act]:
    spec = JobSpec(command=Behaviour(400).command())
    jobs = (
        f.JobSubmitted(job_id=JobId(f"job-{number}"), spec=spec, tenant=TenantId("blue"), user="u")
        for number in range(JOBS)
    )
    return [Act(1.0 + number * EVERY_S, number, (job,)) for number, job in enumerate(jobs)]


def beside(blows: Sequence[Blow], monkeypatch: pytest.MonkeyPatch) -> World:
    """Run a modest tenant beside these blows and no other fault, with more dependencies than the
    random runs have.
    """
    monkeypatch.setattr(world, "workload", modest)
    monkeypatch.setattr(greed, "HELD", 40)
    monkeypatch.setattr(greed, "DEPENDENTS", 200)
    plan = Plan(
        seed=0,
        rates=Rates(),
        blows=tuple(blows),
        storm_s=faults.STORM_S,
        skew_max_s=0.0,
        nodes=NODES,
    )
    return run(world._run(plan, (*ALL, OthersArePlaced)))[0]


@pytest.mark.attack
def test_jobs_of_others_are_placed_beside_a_greedy_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = beside([GREED], monkeypatch)
    assert ran.found is None
    assert sum(greed.is_greedy(job_id) for job_id in ran.reference.jobs) > 200


def test_planted_search_among_dependents_delays_others(monkeypatch: pytest.MonkeyPatch) -> None:
    planted_loads.a_job_that_ends_is_searched_among_all_dependents(monkeypatch)
    monkeypatch.setattr("tests.sim.checkers.folds_stay_linear.LINES_MAX", 1 << 30)
    found = beside([GREED], monkeypatch).found
    assert found is not None and found.checker == "test_greedy_tenant"


def test_planted_search_among_dependents_is_found_among_all_faults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted_loads.a_job_that_ends_is_searched_among_all_dependents(monkeypatch)
    greedy = [
        plan for plan in stormy(0, WITHIN) if any(blow.kind == faults.GREEDY for blow in plan.blows)
    ]
    checkers = [found.checker for plan in greedy if (found := simulate(plan).found) is not None]
    assert "folds_stay_linear" in checkers


def test_a_part_of_the_random_runs_has_a_greedy_tenant() -> None:
    greedy = [blow for plan in stormy(0, 400) for blow in plan.blows if blow.kind == faults.GREEDY]
    assert 8 <= len(greedy) <= 40
