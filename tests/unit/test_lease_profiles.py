"""Lease profiles: what an operator may choose, and how all agents come to go by the choice."""

import msgspec
import pytest

from libs.common import facts as f
from libs.common.errors import Refused
from libs.common.messages import Heartbeat
from libs.common.model import NodeId
from libs.common.state.cluster import (
    Cluster,
    shortest_heartbeat_ms,
    shortest_lease_ms,
    slowest_timing,
)
from libs.common.timing import DEFAULT, FAST, Timing, notice_ms, of_profile
from services.api_gateway.intents.lease_intents import FORMER_MAX, chosen_profile
from services.api_gateway.problems import Problem
from services.api_gateway.views.leases import LeasesShown, leases_shown
from services.scheduler.leases.former import Former
from services.scheduler.leases.leases import MS, Leases
from services.scheduler.leases.renewals import Renewals
from services.scheduler.leases.roster import roster, roster_needed
from tests.given import given, registered
from tests.given import tell as told

A, B = NodeId("a"), NodeId("b")
SLOW = Timing()
QUICK = of_profile(FAST, SLOW)


def chosen(profile: str = FAST, timing: Timing = QUICK) -> f.LeaseProfileSet:
    return f.LeaseProfileSet(profile=profile, timing=timing, user="ann")


def tell(state: Cluster, *facts: f.AnyFact) -> None:
    """Fold facts, each at a sequence of its own."""
    for fact in facts:
        told(state, fact, seq=state.facts + 100)


def cluster(*facts: f.AnyFact) -> Cluster:
    nodes = [
        msgspec.structs.replace(registered(name), peer_address=f"10.0.0.{number}:1")
        for number, name in enumerate("ab")
    ]
    state = given(f.ClusterConfigured(cluster_id="c", timing=SLOW), *nodes).cluster
    tell(state, *facts)
    return state


def test_a_profile_is_chosen_once_and_back() -> None:
    state = cluster()
    wish = chosen_profile(state, {"profile": FAST, "user": "ann"})
    assert wish == chosen()
    tell(state, chosen())
    assert chosen_profile(state, {"profile": FAST}) is None
    back = chosen_profile(state, {"profile": DEFAULT})
    assert back == f.LeaseProfileSet(profile=DEFAULT, timing=SLOW)


def test_an_unknown_profile_is_refused_with_the_accepted_ones() -> None:
    with pytest.raises(Refused, match="'slow' is unknown: give one of default, fast"):
        chosen_profile(cluster(), {"profile": "slow"})


def test_a_profile_waits_for_the_first_scheduler_and_for_too_many_changes() -> None:
    with pytest.raises(Problem, match="wait until its first scheduler runs"):
        chosen_profile(Cluster(), {"profile": FAST})
    state = cluster()
    for number in range(FORMER_MAX):
        tell(state, chosen(*((FAST, QUICK) if number % 2 else (DEFAULT, SLOW))))
    with pytest.raises(Problem, match="changes too often"):
        chosen_profile(state, {"profile": DEFAULT})


def test_the_longest_silence_and_the_shortest_renewal_count_until_all_agents_have_changed() -> None:
    state = cluster(chosen())
    assert state.timing == QUICK and not leases_shown(state).settled
    assert (slowest_timing(state).lease_ms, slowest_timing(state).margin_ms) == (13_000, 1_500)
    assert shortest_lease_ms(state) == QUICK.lease_ms == roster(state).lease_ms
    assert shortest_heartbeat_ms(state) == QUICK.heartbeat_ms
    tell(state, f.LeaseProfileSettled(seq=state.timing_seq))
    assert slowest_timing(state) == QUICK
    assert leases_shown(state) == LeasesShown(FAST, 400, 3_000, 1_000, settled=True)


def test_facts_that_change_no_timing_are_ignored() -> None:
    state = cluster()
    tell(state, chosen("odd"), chosen(FAST, Timing(lease_ms=0)), f.LeaseProfileSettled(seq=1))
    assert (state.timing, state.former, state.ignored) == (SLOW, (), 3)


def test_a_profile_that_was_replaced_is_settled_with_the_one_after_it() -> None:
    state = cluster(chosen())
    first = state.timing_seq
    tell(state, chosen(DEFAULT, SLOW), f.LeaseProfileSettled(seq=first))
    assert [timing for _, timing in state.former] == [QUICK]


def test_a_first_configuration_after_a_profile_leaves_the_profile_in_force() -> None:
    state = given(registered("a")).cluster
    tell(state, chosen(), f.ClusterConfigured(cluster_id="c", timing=Timing(lease_ms=9_000)))
    assert state.timing == QUICK
    assert [timing.lease_ms for _, timing in state.former] == [9_000]


def test_all_agents_go_by_a_profile_once_each_named_its_roster_a_former_lease_ago() -> None:
    state = cluster(chosen())
    leases, renewals, former = Leases(), Renewals(), Former()
    leases.begin(state, 0)
    former.begin()
    assert former.facts(leases, renewals, cluster(), 0) == ()

    def named(node_id: NodeId, seq: int) -> None:
        beat = Heartbeat(node_id, 1, 0, "", roster_nodes=2, roster_seq=seq)
        renewals.hear(state, beat, 0)

    assert former.facts(leases, renewals, state, 0) == ()
    named(A, state.timing_seq)
    assert former.facts(leases, renewals, state, 1 * MS) == ()
    named(B, state.timing_seq)
    assert former.facts(leases, renewals, state, 2 * MS) == ()
    assert former.facts(leases, renewals, state, 2 * MS + 14_500 * MS) == ()
    fact = f.LeaseProfileSettled(seq=state.timing_seq)
    assert former.facts(leases, renewals, state, 3 * MS + 14_500 * MS) == (fact,)
    tell(state, chosen(DEFAULT, SLOW))
    assert former.facts(leases, renewals, state, 99_000 * MS) == ()


def test_the_end_of_a_planned_stop_comes_before_the_end_of_a_former_profile() -> None:
    state = cluster(chosen(), f.LeaseExtended(duration_ms=1))
    leases = Leases()
    leases.begin(state, 0)
    over = Former().facts(leases, Renewals(), state, 600_000 * MS)
    assert over == (f.LeaseExtended(duration_ms=0),)


def test_a_former_longer_lease_stays_until_it_is_over() -> None:
    state, leases = cluster(), Leases()
    leases.begin(state, 0)
    leases.grant(state, A, 0)
    tell(state, chosen())
    assert leases.grant(state, A, 1_000 * MS) == QUICK.lease_ms
    assert leases.granted[A] == 13_000 * MS


def test_an_agent_without_the_present_roster_gets_no_lease_once_all_others_have_it() -> None:
    state = cluster()
    assert roster_needed(state) == 0
    tell(state, chosen())
    assert roster_needed(state) == 0
    tell(state, f.LeaseProfileSettled(seq=state.timing_seq))
    assert roster_needed(state) == state.timing_seq > 0


def test_a_short_lease_gives_jobs_a_shorter_notice() -> None:
    assert [notice_ms(lease) for lease in (600_000, 13_000, 3_000)] == [2_000, 2_000, 750]
