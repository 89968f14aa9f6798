"""Plug-ins: what is good counts by a fact, what is bad is refused when it is loaded or disabled by
a fact, and nothing stops.
"""

import gc
import logging
from collections.abc import Iterator
from itertools import count

import pytest

from libs.common import facts as f
from libs.common.model import JobId
from libs.common.state.cluster import Cluster
from libs.common.state.plugins import ORDER, SCORE, PluginFault
from libs.common.transport import snapshot
from services.scheduler import policies
from services.scheduler.decide.decide import Observations, decide
from services.scheduler.placement import strategies
from services.scheduler.plugins import plugins
from services.scheduler.plugins.plugged import Guard, Plugged
from services.scheduler.state.state import State
from tests.given import (
    given,
    registered,
    tell,
    waiting,
)
from tests.unit.plug_in_functions import (
    BAD,
    HERE,
    TERM,
    in_term,
    nothing_is_plugged,
    order_of,
    point,
    two,
)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    nothing_is_plugged()


def test_a_good_order_and_a_good_score_are_loaded_and_used() -> None:
    plugged = plugins.load([point("mine", "by_least"), point("mine", "widest", SCORE)])
    assert (plugged.orders, plugged.scores, plugged.faults) == ({"mine": ""}, {"mine": ""}, [])
    assert order_of(in_term(TERM, *two())) == ["j", "i"]
    state = in_term(TERM, registered("a", gpus=1), registered("b"), waiting("j", placement="mine"))
    assert [
        fact.members[0].node_id for fact in decide(state, 0) if isinstance(fact, f.JobPlaced)
    ] == ["b"]


def test_a_plugin_counts_only_if_the_terms_scheduler_has_it() -> None:
    plugins.load([point("mine", "by_least"), point("mine", "widest", SCORE)])
    bare = f.TermBegan(instance="b")
    assert order_of(in_term(bare, *two())) == ["i", "j"]
    state = in_term(bare, registered("a", gpus=1), registered("b"), waiting("j", placement="mine"))
    assert [
        fact.members[0].node_id for fact in decide(state, 0) if isinstance(fact, f.JobPlaced)
    ] == ["a"]


def test_a_scheduler_without_the_plugin_takes_over_with_its_default() -> None:
    plugins.load([point("mine", "by_least")])
    state = in_term(TERM, *two())
    state.apply_entry(*term(state.cluster, f.TermBegan(instance="b")))
    state.begin(state.cluster.epoch, 0)
    assert order_of(state) == ["i", "j"]


def term(cluster: Cluster, fact: f.TermBegan) -> tuple[int, str, f.Commit]:
    cluster.seq = 100
    return (
        101,
        "facts.scheduler",
        f.Commit(
            version=1,
            min_reader=1,
            writer="facts.scheduler",
            number=1,
            epoch=0,
            at_ns=0,
            seen=100,
            facts=(fact,),
        ),
    )


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
def test_a_bad_plugin_is_refused_with_one_line(
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
def test_an_entry_point_that_is_no_plugin_is_refused(
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


def test_an_order_that_depends_on_more_than_its_arguments_is_refused(
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


def test_another_version_counts_as_another_plugin() -> None:
    disabled = f.PluginDisabled(extends="order", name="mine", version="1.0", reason="it was slow")
    cluster = in_term(f.TermBegan(instance="b", orders={"mine": "1.1"}), disabled).cluster
    assert cluster.plugins.in_force(ORDER, "mine")
    tell(cluster, f.TermBegan(instance="c", orders={"mine": "1.0"}), seq=9)
    assert not cluster.plugins.in_force(ORDER, "mine")


def test_a_fault_of_a_plugin_outside_this_term_is_not_recorded() -> None:
    fault = PluginFault(ORDER, "mine", "0.9", "it raised")
    assert decide(in_term(TERM, registered("a")), 0, Observations(faults=(fault,))) == ()


def test_a_guard_answers_for_a_failed_plugin_and_does_not_call_it_again() -> None:
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


def test_garbage_collection_does_not_count_as_time_of_a_plugin() -> None:
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


def test_a_queue_with_a_missing_plugin_uses_the_default_order() -> None:
    state = in_term(f.TermBegan(instance="a"), *two())
    assert state.key_of(state.cluster.jobs[JobId("i")])[1] == -90
