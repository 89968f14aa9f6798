"""A node that is not heard, one that hears nothing, and links that come and go.

Jobs stop before they start elsewhere, and a node that is lost again and again is held back.
"""

import pytest

from libs.common import facts as f
from libs.common.life import node_life
from services.scheduler.leases.leases import DEAF_BEATS, Leases
from tests.sim import planted_leases
from tests.sim.bus import CONTROL
from tests.sim.checkers import ALL
from tests.sim.checkers.checker import Checker
from tests.sim.deep import ONE_WAY
from tests.sim.faults import CUT, DEAF, MUTE, Blow, Plan
from tests.sim.seeds import first_found
from tests.sim.weather import Rates
from tests.sim.world import Result, simulate

SEEDS = range(4)
NODES = (2, 2, 4, 2)
NODE = "n2"


def ran(seed: int, blows: tuple[Blow, ...], *more: type[Checker]) -> Result:
    plan = Plan(
        seed=seed,
        rates=Rates(),
        blows=blows,
        storm_s=max(blow.at_s + blow.length_s for blow in blows) + 1.0,
        skew_max_s=0.0,
        nodes=NODES,
    )
    return simulate(plan, (*ALL, *more))


class LostInTime(Checker):
    """The node is lost by silence: after a lease and a margin, and soon enough if it only hears
    nothing.
    """

    lost_s = 0.0
    deaf_s = float(DEAF_BEATS)

    def after(
        self, cluster: object, fact: object, stamp: object, commit: object, change: object
    ) -> None:
        if isinstance(fact, f.NodeLost) and fact.reason == node_life.SILENT:
            self.lost_s = self.lost_s or self.world.loop.now

    def finished(self) -> None:
        silence_s = self.world.reference.timing.silence_ms / 1e3
        if not 4.0 + silence_s - 2.0 < self.lost_s < 4.0 + self.deaf_s + silence_s + 2.0:
            self.fail(f"the node was lost at {self.lost_s} s")


class LostByItsLeases(LostInTime):
    """The agent tells only which leases it has heard, so a lease and a margin pass first."""

    deaf_s = 14.5


class HeldBack(Checker):
    """The node is held back after its third loss, takes no job meanwhile, and some later."""

    losses = holds = ends = 0

    def after(
        self, cluster: object, fact: object, stamp: object, commit: object, change: object
    ) -> None:
        self.losses += isinstance(fact, f.NodeLost)
        self.holds += isinstance(fact, f.NodeHeldBack)
        self.ends += isinstance(fact, f.NodeHoldEnded)
        if isinstance(fact, f.JobPlaced):
            nodes = self.world.reference.nodes
            held = [each.node_id for each in fact.members if nodes[each.node_id].is_held]
            if held:
                self.fail(f"{fact.job_id} is placed on {held}, held back")

    def finished(self) -> None:
        if (self.losses, self.holds, self.ends) != (3, 1, 1):
            self.fail(f"{self.losses} losses, {self.holds} holds, {self.ends} ended")


@pytest.mark.parametrize("kind", [MUTE, DEAF])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_hears_or_is_heard_only_is_lost_and_its_jobs_end_before(
    seed: int, kind: str
) -> None:
    assert ran(seed, (Blow(4.0, kind, NODE, 25.0),), LostInTime).found is None


@pytest.mark.parametrize("seed", SEEDS[:2])
def test_an_agent_of_an_earlier_release_that_hears_nothing_is_lost_too(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted_leases.agents_do_not_tell_which_answers_they_hear(monkeypatch)
    assert ran(seed, (Blow(4.0, DEAF, NODE, 35.0),), LostByItsLeases).found is None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_node_that_is_lost_again_and_again_is_held_back_for_a_time(seed: int) -> None:
    blows = tuple(Blow(4.0 + 14.0 * number, CUT, NODE, 9.0) for number in range(3))
    assert ran(seed, blows, HeldBack).found is None


@pytest.mark.parametrize("seed", SEEDS)
def test_a_link_that_fails_for_less_than_a_lease_again_and_again_loses_no_node(seed: int) -> None:
    class NeverLost(Checker):
        def before(self, cluster: object, fact: object, stamp: object, commit: object) -> None:
            if isinstance(fact, f.NodeLost):
                self.fail("the node is lost")

    blows = tuple(Blow(4.0 + 3.0 * number, CUT, NODE, 1.2) for number in range(8))
    assert ran(seed, blows, NeverLost).found is None


# No node hears the leader, but each is heard.
UNHEARD = tuple(Blow(4.0, ONE_WAY, f"{CONTROL}>n{number}", 20.0) for number in range(len(NODES)))


def test_jobs_go_on_once_most_nodes_hear_the_leader_again() -> None:
    assert ran(1, UNHEARD).found is None


@pytest.mark.drill
def test_planted_loss_of_all_leases_by_a_deaf_majority_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted_leases.agents_do_not_tell_which_answers_they_hear(monkeypatch)
    planted_leases.a_majority_that_heard_nothing_gets_no_lease_again(monkeypatch)
    found = ran(1, UNHEARD).found
    assert found is not None and found.checker == "every_job_ends"


def test_planted_trust_in_a_node_that_hears_nothing_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Leases, "is_deaf", lambda self, cluster, node_id, now: False)
    found = first_found(ran(seed, (Blow(4.0, DEAF, NODE, 25.0),), LostInTime) for seed in SEEDS)
    assert found.checker == "test_one_way"
