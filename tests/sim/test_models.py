"""Runs with models: without faults the number of ready replicas never falls below the wish.

Planted bugs show that the checker would notice.
"""

from collections.abc import Callable
from typing import Final

import msgspec
import pytest

from libs.common.model import JobId
from libs.common.state.cluster import Cluster, Job, Model, is_ready
from services.node_agent.core import serving
from services.scheduler.models import models
from tests.sim import faults
from tests.sim.models import BAD, model_acts
from tests.sim.world import simulate

SEEDS: Final = 60


def with_models(name: str = "") -> list[int]:
    """The seeds whose users deploy anything, or a model of that name."""
    acts = {seed: str(model_acts(seed, 0.0)) for seed in range(SEEDS)}
    return [seed for seed, said in acts.items() if f"name='{name}" in said]


def test_without_faults_never_fewer_replicas_serve_than_were_asked_for() -> None:
    seeds = with_models()[::4]
    assert [simulate(faults.calm(seed)).found for seed in seeds] == [None] * len(seeds)
    assert len(with_models()) > 10 and len(with_models(BAD)) > 3


def test_a_redeployment_that_ends_the_old_ones_first_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def hasty(cluster: Cluster, model: Model, present: list[Job], heard: list[Job]) -> list[JobId]:
        return [
            job.job_id
            for job in present
            if model.jobs[job.job_id] < model.generation and is_ready(job)
        ]

    monkeypatch.setattr(models, "_outdated", hasty)
    assert _found_by_the_checker(with_models())


def test_a_crash_loop_that_does_not_wait_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "backoff_until_ns", lambda model: 0)
    assert _found_by_the_checker(with_models(BAD))


@pytest.mark.drill
def test_a_dead_replica_that_is_not_replaced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With faults: without them none dies."""
    monkeypatch.setattr(models, "_addition", _only_at_first)
    assert _found_by_the_checker(with_models(), plan_of=faults.plan)


@pytest.mark.drill
def test_simulation_finds_an_agent_that_does_not_probe_adopted_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "adopted_health", lambda probe: None)
    assert _found_by_the_checker(with_models(), plan_of=agents_restarted)


def agents_restarted(seed: int) -> faults.Plan:
    """No fault but that every agent dies now and then, and is back at once: also while replicas
    start.
    """
    calm = faults.calm(seed)
    times = [(at_s, index) for at_s in range(1, 16) for index in range(len(calm.nodes))]
    blows = tuple(
        faults.Blow(at_s + index / 10, faults.AGENT_DEAD, f"agent-n{index}", 0.3)
        for at_s, index in times
    )
    return msgspec.structs.replace(calm, blows=blows, storm_s=17.0)


_addition = models._addition


def _only_at_first(cluster: Cluster, model: Model) -> object:
    return (
        _addition(cluster, model)
        if model.next_ordinal <= model.generation * model.spec.replicas
        else None
    )


def _found_by_the_checker(
    seeds: list[int], plan_of: Callable[[int], faults.Plan] = faults.calm
) -> bool:
    runs = (simulate(plan_of(seed)) for seed in seeds)
    found = next((run.found for run in runs if run.found is not None), None)
    print(found)
    return found is not None and found.checker == "models_keep_their_replicas"
