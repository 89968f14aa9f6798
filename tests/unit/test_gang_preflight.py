"""The scheduler's rules of preflights: a gang's links are measured before it starts."""

from typing import Any

import msgspec
import pytest

from libs.cli.verbs import describe
from libs.common import facts as f
from libs.common.change import IGNORED
from libs.common.errors import Refused
from libs.common.facts import AnyFact
from libs.common.facts.fabric_facts import ABANDONED, PASSED, PREFLIGHT, SUSPECT, UNFINISHED
from libs.common.model import JobId, NodeId
from libs.common.state.cluster import Cluster
from services.api_gateway.intents.job_intents import submission
from services.api_gateway.views.jobs import job_shown
from services.scheduler.decide.fabric import why_not
from services.scheduler.explain.explain import explain
from services.scheduler.state.state import State
from tests.given import ended, placed, tell, waiting
from tests.given import member as member_of
from tests.unit.fabric_world import FAST, FabricWorld
from tests.unit.scheduler_decisions import decisions, hear

JOB = JobId("gang")
HOURS_S = 3_600.0


def submit(given: FabricWorld, **fields: Any) -> None:
    hear(given.state, *waiting("gang", **({"gpus": 2, "preflight": True} | fields)))


def begin(given: FabricWorld) -> list[AnyFact]:
    """Return the decisions up to the first round; none of its reports has come."""
    made = decisions(given.state, given.now_s)
    given.rounds += [fact for fact in made if isinstance(fact, f.FabricRoundOrdered)]
    return made


def nodes_of(made: list[AnyFact]) -> list[str]:
    """Return the nodes on which the gang was placed; none if it was not."""
    return [
        member.node_id for fact in made if isinstance(fact, f.JobPlaced) for member in fact.members
    ]


def ends(made: list[AnyFact]) -> list[f.PreflightEnded]:
    return [fact for fact in made if isinstance(fact, f.PreflightEnded)]


def test_a_gang_starts_after_its_pairs_were_measured_in_disjoint_rounds() -> None:
    given = FabricWorld(6)
    submit(given, nodes=4)
    made = begin(given)
    assert [type(fact) for fact in made] == [
        f.DevicesReserved,
        f.FabricTestBegun,
        f.FabricRoundOrdered,
    ]
    given.report(given.rounds[-1])
    made += given.run()
    assert [len(order.pairs) for order in given.rounds] == [2, 2, 2]
    assert [(each.outcome, each.measured, each.detail) for each in ends(made)] == [(PASSED, 6, "")]
    assert nodes_of(made) == ["n00", "n01", "n02", "n03"]
    assert given.state.cluster.fabric.tests == {} and given.state.cluster.fabric.ended == {}


def test_a_gang_does_not_start_on_a_node_that_its_preflight_found_slow() -> None:
    given = FabricWorld(8)
    given.capacity[given.names[3]] = FAST // 2
    submit(given, nodes=6)
    made = given.run()
    first, second = ends(made)
    assert (first.outcome, first.excluded) == (SUSPECT, ("n03",))
    assert first.detail.startswith("n03: its links carry 10.0 Mbit/s, 50 % of other nodes")
    assert second.outcome == PASSED
    assert "n03" not in nodes_of(made) and len(nodes_of(made)) == 6
    job = given.state.cluster.jobs[JOB]
    assert job.refusals.count == 0 and list(job.refusals.excluded) == ["n03"]


def test_of_a_slow_link_the_gang_avoids_one_node() -> None:
    given = FabricWorld(8)
    given.links["n01 n02"] = FAST // 4
    submit(given, nodes=6)
    made = given.run()
    assert ends(made)[0].excluded == ("n01",)
    assert ends(made)[0].detail == "the link n01 - n02 carries 25 % of others"
    assert "n01" not in nodes_of(made) and len(nodes_of(made)) == 6


def test_a_gang_avoids_a_node_whose_probes_fail() -> None:
    given = FabricWorld(8)
    given.errors[given.names[2]] = "its peers stalled"
    submit(given, nodes=6)
    made = given.run()
    assert ends(made)[0].excluded == ("n02",)
    assert "n02" not in nodes_of(made)


def test_of_a_link_that_fails_the_gang_avoids_one_node() -> None:
    given = FabricWorld(3)
    given.errors[given.names[1]] = "its peer stalled"
    submit(given, nodes=2)
    made = given.run()
    assert ends(made)[0].detail == "the link n00 - n01 fails"
    assert ends(made)[0].excluded == ("n00",)


def test_a_suspect_that_a_confirmation_clears_may_be_used() -> None:
    given = FabricWorld(8)
    given.links["n01 n02"] = FAST // 4
    submit(given, nodes=6)
    made = begin(given)
    while given.rounds[-1].stage == 0:
        given.report(given.rounds[-1])
        made += begin(given)
    given.links.clear()
    given.report(given.rounds[-1])
    made += given.run()
    assert [each.outcome for each in ends(made)] == [PASSED]
    assert len(nodes_of(made)) == 6


def test_pairs_that_were_measured_in_the_last_six_hours_are_not_measured_again() -> None:
    given = FabricWorld(4)
    given.ask()
    given.rounds.clear()
    given.now_s += 5 * HOURS_S
    submit(given, nodes=4)
    made = given.run()
    assert given.rounds == [] and ends(made)[0].measured == 0
    assert len(nodes_of(made)) == 4


def test_older_pairs_are_measured_again() -> None:
    given = FabricWorld(4)
    given.ask()
    given.rounds.clear()
    given.now_s += 7 * HOURS_S
    submit(given, nodes=4)
    made = given.run()
    assert ends(made)[0].measured == 6 and len(nodes_of(made)) == 4


def test_a_gang_starts_when_the_time_of_its_preflight_is_over() -> None:
    given = FabricWorld(5)
    given.silent[given.names[0]] = None
    submit(given, nodes=5)
    made = given.run()
    assert [(each.outcome, each.detail) for each in ends(made)] == [(UNFINISHED, "5 s were over")]
    assert len(nodes_of(made)) == 5
    assert given.now_s < 1 + 5 + 2


def measured_but_not_confirmed(given: FabricWorld) -> list[AnyFact]:
    """Measure all pairs of a gang, and return what follows once the 5 s are over."""
    submit(given, nodes=6)
    begin(given)
    while given.rounds[-1].stage == 0:
        given.report(given.rounds[-1])
        assert ends(begin(given)) == []
    given.now_s += 6
    return begin(given)


def test_a_slow_node_that_all_pairs_show_is_avoided_although_no_time_is_left_to_confirm_it() -> (
    None
):
    given = FabricWorld(8)
    given.capacity[given.names[3]] = FAST // 2
    (first, *_) = ends(measured_but_not_confirmed(given))
    assert (first.outcome, first.excluded, first.measured) == (SUSPECT, ("n03",), 15)


def test_a_slow_link_is_not_avoided_without_a_confirmation() -> None:
    given = FabricWorld(8)
    given.links["n01 n02"] = FAST // 4
    made = measured_but_not_confirmed(given)
    assert [(each.outcome, each.detail) for each in ends(made)] == [(UNFINISHED, "5 s were over")]


def test_a_gang_starts_when_a_node_takes_no_probe() -> None:
    given = FabricWorld(3)
    given.refusing[given.names[0]] = "its time for probes is used up"
    submit(given, nodes=3)
    made = given.run()
    (end,) = ends(made)
    assert end.outcome == UNFINISHED and end.excluded == ()
    assert end.detail == "n00 took no probe: its time for probes is used up"
    assert len(nodes_of(made)) == 3


def test_a_node_that_runs_another_job_is_not_measured() -> None:
    given = FabricWorld(2)
    hear(given.state, *waiting("other", gpus=1), placed("other", member_of("n00", 0)))
    submit(given, nodes=2, gpus=1)
    made = given.run()
    assert given.rounds == []
    assert ends(made)[0].detail == "n00: it runs jobs" and len(nodes_of(made)) == 2


def test_a_node_that_has_left_is_not_measured() -> None:
    given = FabricWorld(2)
    assert why_not(given.state.cluster, NodeId("gone")) == "it has not registered"


def test_a_gang_that_is_cancelled_meanwhile_ends_its_preflight() -> None:
    given = FabricWorld(4)
    submit(given, nodes=4)
    begin(given)
    hear(given.state, f.CancelRequested(job_id=JOB))
    made = given.run()
    assert ends(made)[0].outcome == ABANDONED and nodes_of(made) == []


def test_the_next_attempt_has_its_own_preflight() -> None:
    given = FabricWorld(2)
    submit(given, nodes=2, retries=1)
    first = given.run()
    for node in nodes_of(first):
        hear(given.state, *ended("gang", node, exit_code=1))
    made = given.run()
    assert [each.attempt for each in ends(made)] == [2] and len(nodes_of(made)) == 2


def test_a_node_in_a_round_of_another_test_is_waited_for() -> None:
    given = FabricWorld(4)
    hear(given.state, f.FabricTestRequested(test="t"))
    begin(given)
    other = given.rounds[-1]
    submit(given, nodes=4)
    made = begin(given)
    assert [type(fact) for fact in made] == [f.DevicesReserved, f.FabricTestBegun]
    given.report(other)
    made = begin(given)
    assert any(isinstance(fact, f.FabricRoundOrdered) and fact.test != "t" for fact in made)


def test_confirmations_wait_for_the_nodes_of_another_test() -> None:
    given = FabricWorld(4)
    given.ask()
    hear(given.state, f.FabricTestRequested(test="t2"))
    begin(given)
    submit(given, nodes=4)
    assert ends(begin(given)) == []


def test_another_scheduler_goes_on_with_the_preflight() -> None:
    given = FabricWorld(4)
    submit(given, nodes=4)
    begin(given)
    given.state = State(given.state.cluster)
    given.state.begin(1, 0)
    made = given.run()
    assert ends(made)[0].outcome == PASSED and len(nodes_of(made)) == 4


def test_a_gang_without_preflight_starts_at_once() -> None:
    given = FabricWorld(2)
    submit(given, nodes=2, preflight=False)
    assert [type(fact) for fact in begin(given)] == [f.JobPlaced]


def test_why_names_a_preflight_under_way_and_what_one_excluded() -> None:
    given = FabricWorld(6)
    given.capacity[given.names[3]] = FAST // 2
    submit(given, nodes=6)
    begin(given)
    assert "its preflight measures the links between n00" in why(given.state.cluster)
    given.report(given.rounds[-1])
    made = given.run()
    assert nodes_of(made) == []
    assert "its preflight excluded nodes that it needs: n03: its links" in why(given.state.cluster)


def why(cluster: Cluster) -> str:
    return str(explain(State(cluster), JOB)["answer"])


def test_a_job_of_one_node_may_not_ask_for_a_preflight() -> None:
    body = {"command": ["true"], "preflight": True}
    with pytest.raises(Refused, match=r"preflight: it measures links .* nodes: 1: give at least 2"):
        submission(body, JOB)
    assert submission({**body, "nodes": 2}, JOB).spec.preflight


def test_a_job_shows_its_last_preflight() -> None:
    given = FabricWorld(8)
    given.capacity[given.names[3]] = FAST // 2
    submit(given, nodes=6)
    made = begin(given)
    while not ends(made):
        given.report(given.rounds[-1])
        made += begin(given)
    shown = job_shown(given.state.cluster, given.state.cluster.jobs[JOB])
    assert shown.preflight is not None and shown.excluded_nodes == ["n03"]
    assert (shown.preflight.outcome, shown.preflight.excluded) == (SUSPECT, ["n03"])
    text = describe._preflight({"preflight": msgspec.to_builtins(shown.preflight)})
    assert text.startswith("suspect in attempt 1, ")
    assert "avoids n03: n03: its links carry 10.0 Mbit/s" in text
    assert describe._preflight({}) == ""


def test_why_quotes_the_preflight_of_a_gang_that_starts() -> None:
    given = FabricWorld(3)
    submit(given, nodes=3)
    given.run()
    assert "; its preflight passed: 3 pairs measured" in why(given.state.cluster)


def test_an_ended_preflight_of_another_attempt_changes_no_job() -> None:
    given = FabricWorld(3)
    submit(given, nodes=3)
    begin(given)
    test = next(iter(given.state.cluster.fabric.tests))
    end = f.PreflightEnded(test=test, job_id=JOB, attempt=2, outcome=PASSED)
    hear(given.state, end)
    assert given.state.cluster.fabric.tests == {}
    assert given.state.cluster.jobs[JOB].preflight is None
    assert tell(given.state.cluster, end) is IGNORED


def test_a_preflight_of_a_job_that_is_gone_ends() -> None:
    given = FabricWorld(3)
    nodes = tuple(given.names)
    hear(
        given.state,
        f.FabricTestBegun(test="p", purpose=PREFLIGHT, nodes=nodes, job_id=JOB, attempt=1),
    )
    assert [end.outcome for end in ends(given.run())] == [ABANDONED]


def test_two_slow_links_of_one_node_exclude_that_node_only() -> None:
    given = FabricWorld(8)
    given.links |= {"n01 n02": FAST // 4, "n01 n03": FAST // 4}
    submit(given, nodes=6)
    made = given.run()
    assert ends(made)[0].excluded == ("n01",)
    assert "n01" not in nodes_of(made) and len(nodes_of(made)) == 6


def test_a_place_of_one_node_has_no_preflight() -> None:
    given = FabricWorld(2)
    submit(given, nodes=1)
    assert [type(fact) for fact in begin(given)] == [f.JobPlaced]
