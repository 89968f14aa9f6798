"""Plug-ins that fail while the scheduler decides, answers or makes room."""

from collections.abc import Iterator

import pytest

from libs.common import facts as f
from libs.common.model import JobId, TenantId
from libs.common.state.plugins import ORDER, SCORE, PluginFault
from libs.common.transport import snapshot
from services.scheduler.decide.decide import Observations, decide
from services.scheduler.decide.placing import catch_up
from services.scheduler.explain.explain import explain
from services.scheduler.placement.resource_request import request_of
from services.scheduler.plugins import plugins
from services.scheduler.plugins.plugged import Plugged
from services.scheduler.preemption.preemptible import Need
from services.scheduler.questions.what_if import WhatIfAsk, what_if
from services.scheduler.state.state import State
from tests.given import (
    member,
    placed,
    registered,
    spec,
    started,
    tell,
    waiting,
)
from tests.unit.plug_in_functions import (
    TERM,
    in_term,
    nothing_is_plugged,
    order_of,
    point,
    queue_by,
)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    nothing_is_plugged()


def running(job: str, node: str, *gpus: int) -> list[f.AnyFact]:
    """It makes room for others."""
    asked = waiting(job, gpus=len(gpus), priority=10, preemptible=True)
    return [*asked, placed(job, member(node, *gpus)), started(job, node)]


def faults_of(plugged: Plugged) -> tuple[PluginFault, ...]:
    """Those that there are now, each of the order or the score `mine`."""
    assert [(fault.name, fault.version) for fault in plugged.faults] == [("mine", "")]
    return tuple(plugged.faults)


def test_a_score_that_fails_during_preemption_is_disabled_and_room_is_made() -> None:
    plugged = plugins.load([point("mine", "afraid_of_b", SCORE)])
    state = in_term(
        TERM,
        registered("b"),
        running("low", "b", 0, 1, 2, 3),
        waiting("high", gpus=4, priority=90, placement="mine"),
    )
    decide(state, 0)
    heard = Observations(faults=faults_of(plugged))
    (disabled,) = decide(state, 0, heard)
    assert isinstance(disabled, f.PluginDisabled)
    state.apply_own((disabled,), 0)
    assert [type(fact) for fact in decide(state, 0, heard)] == [f.DevicesReserved, f.JobPreempted]


def test_a_score_that_fails_in_idle_time_is_noted() -> None:
    plugged = plugins.load([point("mine", "afraid_of_b", SCORE)])
    state = in_term(
        TERM,
        registered("a"),
        waiting("j", gpus=1, placement="mine"),
        waiting("i", gpus=4, placement="mine"),
    )
    assert order_of(state) == ["j"] and plugged.faults == []
    state.refresh(tell(state.cluster, registered("b")))
    catch_up(state)
    assert [type(fact) for fact in decide(state, 0, Observations(faults=faults_of(plugged)))] == [
        f.PluginDisabled
    ]


def test_offers_are_computed_again_after_a_score_is_disabled() -> None:
    plugins.load([point("mine", "widest", SCORE)])
    request = request_of(spec(gpus=2, placement="mine"))
    state = in_term(TERM, registered("a"), registered("b", gpus=2), running("low", "a", 0, 1, 2))
    before = dict(state.offers(request, "", Need(90)).of)
    state.apply_own(
        (f.PluginDisabled(extends="score", name="mine", version="", reason="it was slow"),), 0
    )
    heir = State(snapshot.copy(state.cluster))
    assert state.offers(request, "", Need(90)).of == heir.offers(request, "", Need(90)).of != before


def test_an_explanation_names_the_order_of_a_plugin() -> None:
    plugins.load([point("mine", "by_least")])
    busy = [
        queue_by("mine"),
        registered("a", gpus=2),
        *waiting("k", gpus=2),
        placed("k", member("a", 0, 1)),
        started("k", "a"),
    ]
    shown = explain(in_term(TERM, *busy, *waiting("j", gpus=2), *waiting("i", gpus=1)), JobId("j"))
    assert shown["before"] == [{"job_id": "i", "why": "is first by the order mine"}]
    assert "by the order of its queue (mine)" in [each["detail"] for each in shown["blockers"]]


@pytest.mark.parametrize(("what", "kind"), [("afraid_of_b", SCORE), ("afraid_of_boom", ORDER)])
def test_why_and_whatif_answer_although_a_plugin_fails_meanwhile(what: str, kind: str) -> None:
    request = spec(gpus=4, name="boom", placement="mine")
    busy = [
        queue_by("mine"),
        registered("b"),
        *waiting("low", gpus=1),
        placed("low", member("b", 0)),
        started("low", "b"),
    ]
    for ask in (
        lambda: explain(
            in_term(TERM, *busy, *waiting("j", gpus=4, name="boom", placement="mine")), JobId("j")
        ),
        lambda: what_if(in_term(TERM, *busy), WhatIfAsk(request, TenantId("default"))),
    ):
        nothing_is_plugged()
        plugged = plugins.load([point("mine", what, kind)])
        shown = ask()
        assert "cancel low, which has 1 GPU" in shown["changes"] and shown["estimate"]
        assert faults_of(plugged)
