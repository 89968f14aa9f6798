"""Plug-ins: what is good counts by a fact, what is bad is refused when it is loaded or disabled by
a fact, and nothing stops.
"""

import gc
import logging
import time
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from itertools import count
from typing import Any

import pytest

from libs.common import facts as f
from libs.common.model import JobId, TenantId
from libs.common.state.cluster import Cluster
from libs.common.state.plugins import ORDER, SCORE, PluginFault
from libs.common.transport import snapshot
from services.scheduler import policies
from services.scheduler.decide.decide import Observations, decide
from services.scheduler.decide.placing import catch_up
from services.scheduler.explain.explain import explain
from services.scheduler.placement import strategies
from services.scheduler.placement.resource_request import request_of
from services.scheduler.plugins import plugins
from services.scheduler.plugins.plugged import Guard, Plugged
from services.scheduler.preemption.preemptible import Need
from services.scheduler.questions.what_if import WhatIfAsk, what_if
from services.scheduler.state.state import State
from tests.given import (
    EPOCH,
    SECOND_NS,
    given,
    member,
    placed,
    registered,
    spec,
    started,
    tell,
    waiting,
)

HERE = "tests.unit.test_plugins"
TERM = f.TermBegan(instance="a", orders={"mine": ""}, scores={"mine": ""})


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    nothing_is_plugged()


def nothing_is_plugged() -> None:
    policies.PLUGGED.clear()
    strategies.PLUGGED.clear()


def by_least(job: Any, queue: Any, now_ns: int) -> Any:
    return (job.spec.gpus,)


def widest(place: Any, fit: Any, request: Any, mix: Any) -> Any:
    return place.whole.bit_count()


def afraid_of_b(place: Any, fit: Any, request: Any, mix: Any) -> Any:
    return 1 // (place.node_id != "b")


def afraid_of_boom(job: Any, queue: Any, now_ns: int) -> Any:
    return (1 // (job.spec.name != "boom"), job.spec.gpus)


NUMBERS = count()
BAD: dict[str, tuple[Callable[..., Any], str]] = {
    "raises": (
        lambda *_: 1 // 0,
        "it raised ZeroDivisionError: integer division or modulo by zero",
    ),
    "exits": (lambda *_: exit(3), "it raised SystemExit: 3"),
    "surrogates": (lambda *_: exit("\udc80"), "it raised SystemExit: ?"),
    "floats": (lambda *_: (0.5,), "it returned (0.5, "),
    "nothing": (lambda *_: None, "it returned None, which is no valid answer"),
    "counts": (lambda *_: (next(NUMBERS),), "it returned (0, "),
    "forever": (lambda *_: forever(), "it did not return within 1 s"),
    "slowly": (lambda *_: burn(0.06), "it takes more than 100 us a call"),
}
NO_FUNCTION = 7


def forever() -> None:
    while True:
        try:
            time.sleep(0.01)
        except (OSError, ValueError):  # as careless as plug-ins are
            continue


def burn(seconds: float) -> tuple[int, ...]:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return (0,)


def point(name: str, what: str, kind: str = ORDER) -> tuple[str, EntryPoint]:
    return kind, EntryPoint(name, f"{HERE}:{what}", f"muster.{kind}s")


def order_of(state: State) -> list[str]:
    said: list[str] = []
    while facts := decide(state, SECOND_NS):
        said += [str(fact.job_id) for fact in facts if isinstance(fact, f.JobPlaced)]
        state.apply_own(facts, SECOND_NS)
    return said


def in_term(fact: f.TermBegan, *history: f.AnyFact | list[f.AnyFact]) -> State:
    """A scheduler's state in this very term, after this history."""
    cluster = given(*history).cluster
    tell(cluster, fact, seq=EPOCH)
    state = State(cluster)
    state.begin(EPOCH, 0)
    return state


def queue_by(policy: str) -> f.QueueSet:
    return f.QueueSet(queue="default", policy=policy)


def two() -> list[f.AnyFact]:
    return [
        registered("a"),
        queue_by("mine"),
        *waiting("i", gpus=2, priority=90),
        *waiting("j", gpus=1),
    ]


def test_a_good_order_and_a_good_score_are_loaded_and_used() -> None:
    plugged = plugins.load([point("mine", "by_least"), point("mine", "widest", SCORE)])
    assert (plugged.orders, plugged.scores, plugged.faults) == ({"mine": ""}, {"mine": ""}, [])
    assert order_of(in_term(TERM, *two())) == ["j", "i"]
    state = in_term(TERM, registered("a", gpus=1), registered("b"), waiting("j", placement="mine"))
    assert [
        fact.members[0].node_id for fact in decide(state, 0) if isinstance(fact, f.JobPlaced)
    ] == ["b"]


def test_what_the_terms_scheduler_does_not_have_does_not_count() -> None:
    plugins.load([point("mine", "by_least"), point("mine", "widest", SCORE)])
    bare = f.TermBegan(instance="b")
    assert order_of(in_term(bare, *two())) == ["i", "j"]
    state = in_term(bare, registered("a", gpus=1), registered("b"), waiting("j", placement="mine"))
    assert [
        fact.members[0].node_id for fact in decide(state, 0) if isinstance(fact, f.JobPlaced)
    ] == ["a"]


def test_a_scheduler_without_it_takes_over_and_goes_by_its_default() -> None:
    plugins.load([point("mine", "by_least")])
    state = in_term(TERM, *two())
    state.apply_entry(*term(state.cluster, f.TermBegan(instance="b")))
    state.begin(state.cluster.epoch, 0)
    assert order_of(state) == ["i", "j"]


def term(cluster: Cluster, fact: f.TermBegan) -> tuple[int, str, f.Commit]:
    cluster.seq = 100
    return 101, "facts.scheduler", f.Commit(1, 1, "facts.scheduler", 1, 0, 0, 100, (fact,))


def test_a_term_names_the_plugins_that_its_scheduler_lacks() -> None:
    cluster = in_term(TERM).cluster
    plugged = Plugged()
    plugged.scores["mine"] = "2.0"
    assert list(plugged.missing(cluster)) == [
        (
            "the last scheduler had the order mine, version ; this one has none, and records that "
            "in TermBegan"
        ),
        (
            "the last scheduler had the score mine, version ; this one has version 2.0, and "
            "records that in TermBegan"
        ),
    ]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_one_is_refused_with_one_line(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call, reason = BAD[name]
    monkeypatch.setattr(f"{HERE}.by_least", call)
    with caplog.at_level(logging.ERROR):
        plugged = plugins.load([point("mine", "by_least")])
    assert (plugged.orders, plugged.faults, policies.PLUGGED) == ({}, [], {})
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"the order mine ({HERE}:by_least) is refused: {reason}")


@pytest.mark.parametrize(
    ("name", "what", "kind", "reason"),
    [
        ("fifo", "by_least", ORDER, "a built-in one has this name"),
        ("Mine!", "by_least", ORDER, "a name consists of at most 63 lower-case letters"),
        ("mine", "nobody", ORDER, "when it was loaded, it raised AttributeError"),
        (
            "mine",
            "NO_FUNCTION",
            ORDER,
            "when it was loaded, it returned 7, which is no valid answer",
        ),
        ("mine", "by_least", SCORE, "it raised TypeError"),
    ],
)
def test_what_is_no_plug_in_is_refused(
    name: str, what: str, kind: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        plugged = plugins.load([point(name, what, kind)])
    assert (plugged.orders, plugged.scores, strategies.PLUGGED) == ({}, {}, {})
    assert caplog.records[0].getMessage().split("is refused: ")[1].startswith(reason)


def test_the_first_of_two_plugins_with_one_name_is_loaded_up_to_the_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plugged = plugins.load(
        [
            point("mine", "by_least"),
            point("mine", "by_least"),
            *(point(f"m{n}", "by_least") for n in range(40)),
        ]
    )
    assert len(plugged.orders) == plugins.PLUGINS_MAX
    assert (
        "another plug-in has this name" in caplog.text
        and "there are 32 plug-ins already" in caplog.text
    )


def test_an_order_that_depends_on_more_than_it_is_asked_is_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = count()
    monkeypatch.setattr(
        f"{HERE}.by_least", lambda job, *_: (job.seq if next(numbers) < calls else -job.seq,)
    )
    calls = 1_000
    assert plugins.load([point("mine", "by_least")]).orders == {"mine": ""}
    numbers, calls = count(), next(numbers) // 2
    assert plugins.load([point("mine", "by_least")]).orders == {}
    assert "two trials on the same cluster led to different decisions" in caplog.text


def test_a_failed_plugin_is_disabled_before_any_other_decision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plugged = plugins.load([point("mine", "by_least")])
    fault = PluginFault(ORDER, "mine", "", "it raised KeyError: 'x'")
    state = in_term(TERM, *two())
    (fact,) = decide(state, 0, Observations(faults=(fault,)))
    assert fact == f.PluginDisabled(
        extends="order", name="mine", version="", reason="it raised KeyError: 'x'"
    )
    state.apply_own((fact,), 0)
    assert decide(state, 0, Observations(faults=(fault,)))[0] != fact
    assert order_of(state) == ["i", "j"] and plugged.orders == {"mine": ""}


def test_a_replay_follows_the_facts_and_not_the_plugin() -> None:
    plugins.load([point("mine", "by_least")])
    disabled = f.PluginDisabled(extends="order", name="mine", version="", reason="it was slow")
    state = in_term(TERM, *two(), disabled)
    heir = State(snapshot.copy(state.cluster))
    heir.begin(1, 0)
    assert order_of(heir) == ["i", "j"]


def test_another_version_is_another_plug_in() -> None:
    disabled = f.PluginDisabled(extends="order", name="mine", version="1.0", reason="it was slow")
    cluster = in_term(f.TermBegan(instance="b", orders={"mine": "1.1"}), disabled).cluster
    assert cluster.plugins.in_force(ORDER, "mine")
    tell(cluster, f.TermBegan(instance="c", orders={"mine": "1.0"}), seq=9)
    assert not cluster.plugins.in_force(ORDER, "mine")


def test_a_fault_of_what_this_term_does_not_have_is_no_fact() -> None:
    fault = PluginFault(ORDER, "mine", "0.9", "it raised")
    assert decide(in_term(TERM, registered("a")), 0, Observations(faults=(fault,))) == ()


def test_a_guard_answers_for_what_went_bad_and_asks_it_no_more() -> None:
    asked: list[int] = []

    def sometimes(number: int) -> int:
        asked.append(number)
        return 10 // (3 - number)

    faults: list[str] = []
    guard = Guard(
        sometimes, faults.append, lambda value: isinstance(value, int), lambda number: -number
    )
    assert [guard(number) for number in range(6)] == [3, 5, 10, -3, -4, -5]
    assert asked == [0, 0, 1, 2, 3] and faults == [
        "it raised ZeroDivisionError: integer division or modulo by zero"
    ]


def test_no_collection_is_held_against_a_plug_in() -> None:
    guard = Guard(gc.isenabled, pytest.fail, lambda value: isinstance(value, bool), lambda: None)
    assert gc.isenabled() and guard() is False and gc.isenabled()
    gc.disable()
    try:
        assert guard() is False and not gc.isenabled()
    finally:
        gc.enable()


def test_the_latest_disabled_versions_are_kept() -> None:
    cluster = given().cluster
    for number in range(300):
        tell(
            cluster, f.PluginDisabled(extends="score", name="mine", version=str(number), reason="x")
        )
    assert len(cluster.plugins.disabled) == 256 and "score mine 299" in cluster.plugins.disabled


def test_a_job_that_waits_in_an_unplugged_queue_has_its_place_by_the_default() -> None:
    state = in_term(f.TermBegan(instance="a"), *two())
    assert state.key_of(state.cluster.jobs[JobId("i")])[1] == -90


def running(job: str, node: str, *gpus: int) -> list[f.AnyFact]:
    """It makes room for others."""
    asked = waiting(job, gpus=len(gpus), priority=10, preemptible=True)
    return [*asked, placed(job, member(node, *gpus)), started(job, node)]


def faults_of(plugged: Plugged) -> tuple[PluginFault, ...]:
    """Those that there are now, each of the order or the score `mine`."""
    assert [(fault.name, fault.version) for fault in plugged.faults] == [("mine", "")]
    return tuple(plugged.faults)


def test_a_score_that_goes_bad_while_room_is_made_is_disabled_and_room_is_made_all_the_same() -> (
    None
):
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


def test_a_score_that_goes_bad_while_nothing_is_to_be_decided_is_noted() -> None:
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


def test_what_others_could_offer_is_found_anew_when_a_score_counts_no_more() -> None:
    plugins.load([point("mine", "widest", SCORE)])
    request = request_of(spec(gpus=2, placement="mine"))
    state = in_term(TERM, registered("a"), registered("b", gpus=2), running("low", "a", 0, 1, 2))
    before = dict(state.offers(request, "", Need(90)).of)
    state.apply_own(
        (f.PluginDisabled(extends="score", name="mine", version="", reason="it was slow"),), 0
    )
    heir = State(snapshot.copy(state.cluster))
    assert state.offers(request, "", Need(90)).of == heir.offers(request, "", Need(90)).of != before


def test_a_proof_names_the_order_of_a_plug_in() -> None:
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
def test_why_and_whatif_answer_although_a_plug_in_goes_bad_meanwhile(what: str, kind: str) -> None:
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
