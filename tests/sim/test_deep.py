"""Deeper plans: each kind of fault alone ends no rule, most kinds are off in each run, and a
cluster that stands still after the last fault is found.
"""

import asyncio
import random
from typing import Any

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.transport.log import AppendRefused, AppendUnknown
from libs.common.transport.writer import Writer
from tests.sim import deep, versions
from tests.sim.bus import CONTROL, Network
from tests.sim.checkers import DEEP
from tests.sim.deep import DISK_FULL, LATER_VERSION, ONE_WAY, SLOW_DRIVER
from tests.sim.faults import STORM_S, Blow, Plan
from tests.sim.loop import run
from tests.sim.seeds import hold
from tests.sim.weather import Rates, Weather
from tests.sim.world import World, _run

SEEDS = 2
# Plans that are drawn to see how often a kind is on, and seeds within which a bug must be found.
DRAWN = 300
WITHIN = 5


def ran(seed: int, *blows: Blow) -> World:
    """One run with these blows and no other fault."""
    plan = Plan(
        seed=seed,
        rates=Rates(),
        blows=tuple(sorted(blows)),
        storm_s=STORM_S,
        skew_max_s=0.0,
        nodes=(2, 2, 4, 2),
    )
    world, _ = run(_run(plan, DEEP))
    return world


def lived(seed: int, *blows: Blow) -> World:
    """One run in which every rule holds."""
    world = ran(seed, *blows)
    assert world.found is None, f"seed {seed}: {world.found}"
    return world


def test_every_rule_holds_in_deeper_seeds() -> None:
    hold((deep.plan(seed) for seed in range(SEEDS)), DEEP)


def test_each_kind_is_off_in_many_runs_and_on_in_others() -> None:
    plans = [deep.plan(seed) for seed in range(DRAWN)]
    for kind in deep.KINDS:
        part = sum(any(blow.kind == kind for blow in plan.blows) for plan in plans) / DRAWN
        assert 0.2 < part < 0.7, kind
    for name in deep.RATES[:-2]:
        part = sum(getattr(plan.rates, name) > 0 for plan in plans) / DRAWN
        assert 0.1 < part < 0.7, name
    few = [len({blow.kind for blow in plan.blows}) for plan in plans]
    assert min(few) <= 1 and max(few) >= 10


@pytest.mark.parametrize("seed", range(2))
def test_full_disk_loses_no_acknowledged_fact_and_heals(seed: int) -> None:
    world = lived(seed, Blow(3.0, DISK_FULL, "log", 8.0), Blow(15.0, DISK_FULL, "log", 4.0))
    assert world.weather.counts["append_on_full_disk"] > 10


@pytest.mark.parametrize("pair", [f"n1>{CONTROL}", f"{CONTROL}>n1", "n1>n2"])
def test_partition_in_one_direction_breaks_no_rule(pair: str) -> None:
    lived(1, Blow(4.0, ONE_WAY, pair, 15.0))


async def test_messages_pass_in_the_other_direction() -> None:
    network = Network(Weather(1, Rates()))
    network.one_way["n1", CONTROL] = float("inf")
    assert not network.passes("n1", CONTROL, "x")
    assert network.passes(CONTROL, "n1", "x") and network.passes("n2", CONTROL, "x")


def test_slow_driver_delays_and_loses_nothing() -> None:
    world = lived(2, *(Blow(2.0, SLOW_DRIVER, f"n{number}", 20.0) for number in range(4)))
    assert {job.state for job in world.reference.jobs.values()} & {"completed"}


def test_two_versions_work_together_in_any_order() -> None:
    upgrades = [
        Blow(3.0 + 2 * number, LATER_VERSION, name, 0.05)
        for number, name in enumerate(
            ("scheduler-a", "agent-n1", "quota", "gateway", "scheduler-b", "quota-b")
        )
    ]
    back = Blow(17.0, LATER_VERSION, "scheduler-a", 0.05)
    world = lived(3, *upgrades, back)
    later = {
        subjects.writer_kind(entry.subject)
        for entry in world.stream.entries
        if versions.FIELD.encode() in entry.data
    }
    assert later == {"scheduler", "node", "quota", "gateway"}
    kinds = [fact.name for fact in unknown(world)]
    assert kinds and set(kinds) == {versions.KIND}


def unknown(world: World) -> list[f.Unknown]:
    facts = [fact for entry in world.stream.entries for fact in f.decode(entry.data).facts]
    return [fact for fact in facts if isinstance(fact, f.Unknown)]


def test_a_later_version_s_commit_has_the_same_facts_for_this_one() -> None:
    facts = (f.JobAdmitted(job_id="j"), f.TermBegan(instance="a"))  # type: ignore[arg-type]
    head: dict[str, Any] = {"version": f.VERSION, "min_reader": f.VERSION, "writer": "quota"}
    commit = f.Commit(**head, number=1, epoch=2, at_ns=3, seen=4, facts=facts)
    data = versions.rewritten(f.encode(commit), with_kind=False)
    assert data != f.encode(commit) and f.decode(data) == commit
    read = f.decode(versions.rewritten(f.encode(commit), with_kind=True))
    assert read.facts[:2] == facts and isinstance(read.facts[2], f.Unknown)


def test_planted_writer_that_gives_up_after_an_error_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its process lives and leads on, and writes nothing."""

    async def gives_up(self: Writer, data: bytes) -> int:
        try:
            return await self.log.append(self.subject, data, self.expected)
        except (AppendRefused, AppendUnknown):
            await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(Writer, "_append", gives_up)
    dice = random.Random(1)
    blows = [Blow(dice.uniform(2.0, 8.0), DISK_FULL, "log", 4.0) for _ in range(WITHIN)]
    found = [ran(seed, blow).found for seed, blow in enumerate(blows)]
    assert "lives_after_the_storm" in {each.checker for each in found if each is not None}
