"""Two schedulers that begin in the same moment: the log takes one term, and the one that it refused
disturbs nothing.
"""

import pytest

from libs.common import facts as f
from libs.common.leadership.candidate import Candidate
from tests.sim import bus, planted
from tests.sim.checkers import ALL
from tests.sim.faults import KILL, Blow, Plan
from tests.sim.loop import run
from tests.sim.weather import Rates
from tests.sim.world import World, _run


@pytest.mark.parametrize("seed", range(8))
def test_two_schedulers_that_start_together_make_one_term(seed: int) -> None:
    world, _ = run(
        _run(
            Plan(
                seed=seed, rates=Rates(), blows=(), storm_s=40.0, skew_max_s=0.0, nodes=(2, 2, 4, 2)
            ),
            ALL,
        )
    )
    assert world.found is None
    terms = [
        fact
        for entry in world.stream.entries
        for fact in f.decode(entry.data).facts
        if isinstance(fact, f.TermBegan)
    ]
    assert len(terms) == 1


def terms_of(world: World) -> int:
    entries = world.stream.entries
    return sum(
        isinstance(fact, f.TermBegan) for entry in entries for fact in f.decode(entry.data).facts
    )


@pytest.mark.drill
@pytest.mark.attack
@pytest.mark.parametrize("seed", range(2))
def test_scheduler_fenced_while_it_starts_ends_although_a_cancellation_is_lost(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = start_race(seed, monkeypatch)
    assert world.found is None
    assert world.weather.counts["cancellation_lost"] > 0


def test_planted_group_that_cancels_once_leaves_a_zombie(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.tasks_are_cancelled_once(monkeypatch)
    found = start_race(0, monkeypatch).found
    assert found is not None and found.checker == "no_process_outlives_its_duty"


def start_race(seed: int, monkeypatch: pytest.MonkeyPatch) -> World:
    """Run two schedulers that begin a term each, because neither waits for the other, while
    subscribing takes long.
    """
    monkeypatch.setattr(bus, "FLUSH_S", 0.05 + seed * 0.01)
    monkeypatch.setattr(Candidate, "_turn", _at_once)
    monkeypatch.setattr(Candidate, "confirm", _whatever)
    late = (Blow(0.0, KILL, "scheduler-b", 0.06),)
    plan = Plan(
        seed=seed,
        rates=Rates(cancellation_lost=1.0),
        blows=late,
        storm_s=40.0,
        skew_max_s=0.0,
        nodes=(2, 2, 4, 2),
    )
    return run(_run(plan, ALL))[0]


async def _at_once(self: Candidate) -> None:
    return


async def _whatever(self: Candidate, slow: bool) -> None:
    return


@pytest.mark.attack
@pytest.mark.parametrize("restart_s", [0.05, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_kill_of_the_leader_makes_one_term_more(
    seed: int, restart_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaders = _leaders_killed(monkeypatch)
    kills = [
        Blow(8.0 + 6.0 * number, KILL, f"scheduler-{'ab'[number % 2]}", restart_s)
        for number in range(4)
    ]
    world, _ = run(
        _run(
            Plan(
                seed=seed,
                rates=Rates(),
                blows=tuple(kills),
                storm_s=40.0,
                skew_max_s=0.0,
                nodes=(2, 2, 4, 2),
            ),
            ALL,
        )
    )
    assert world.found is None
    assert leaders
    assert terms_of(world) == 1 + len(leaders)


def _leaders_killed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    strike, killed = World.strike, list[str]()

    def watched(self: World, blow: Blow) -> None:
        killed.extend(name for name, _ in self.leading() if name == blow.target)
        strike(self, blow)

    monkeypatch.setattr(World, "strike", watched)
    return killed


def test_scheduler_that_loses_the_first_race_stands_by_and_does_not_end() -> None:
    world, _ = run(
        _run(
            Plan(seed=0, rates=Rates(), blows=(), storm_s=20.0, skew_max_s=0.0, nodes=(2, 2, 4, 2)),
            ALL,
        )
    )
    assert world.found is None
    assert [slot.starts for name, slot in world.slots.items() if name.startswith("scheduler-")] == [
        1,
        1,
    ]
