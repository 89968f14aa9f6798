"""Turns: in a queue with time slices jobs of equal priority make room for each other, each after
its slice, and wait behind the others.
"""

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common import subjects
from libs.common.arrays import parse
from libs.common.change import Stamp
from libs.common.facts import AnyFact
from libs.common.model import JobId, NodeId
from services.scheduler.explain.explain import explain
from services.scheduler.state.state import State
from tests.given import (
    SECOND_NS,
    finished,
    given,
    member,
    placed,
    registered,
    released,
    started,
    waiting,
)
from tests.unit.preemption_facts import gang_on, preempted, reserved, running
from tests.unit.scheduler_decisions import decisions, hear

SAVES = {
    "preemptible": True,
    "checkpoint_grace_s": 60,
    "checkpoint_signal": 10,
    "grace_s": 5,
    "priority": 10,
}
WHOLE = (0, 1, 2, 3)


def sliced(
    time_slice_s: int = 10, policy: str = "priority", queue: str = "default", **fields: object
) -> f.QueueSet:
    return f.QueueSet(queue=queue, policy=policy, time_slice_s=time_slice_s, **fields)  # type: ignore[arg-type]


def turn(job: str, **fields: object) -> list[AnyFact]:
    return waiting(job, **({"gpus": 4} | SAVES | fields))


def one_runs(*history: object, **fields: object) -> State:
    """`one` has the whole node, and was seen to run at 1 s."""
    state = given(registered("a"), sliced(), running("one", *WHOLE, **(SAVES | fields)), *history)  # type: ignore[arg-type]
    decisions(state)
    return state


def stopped(state: State, job: str, attempt: int = 1) -> None:
    """It has saved its work, and is gone."""
    saved = f.JobCheckpointed(job_id=JobId(job), attempt=attempt, node_id=NodeId("a"), asked=True)
    hear(
        state,
        saved,
        finished(job, "a", None, attempt=attempt, signal=15, reason="stopped"),
        released(job, "a", attempt),
    )


def node_of(state: State, job: str) -> str:
    return next(iter(state.cluster.jobs[JobId(job)].members))


def reset(state: State, setting: f.QueueSet) -> None:
    """An administrator exchanges the queue while jobs run."""
    state.imagine(
        setting, Stamp(seq=0, at_ns=0, epoch=1, writer=subjects.GATEWAY_KIND, writer_id="")
    )


def over(job: str, by: str, now_s: int, attempt: int = 1) -> f.JobPreempted:
    """Return the preemption of a job that has run for its time slice."""
    lost = preempted(job, by, attempt, lost_share_ms=400 * 1_000 * now_s, signal=10, grace_s=65)
    return replace(lost, sliced=True)


def test_a_job_whose_slice_is_over_yields_to_equal_priority() -> None:
    state = one_runs(turn("two"))
    assert decisions(state, now_s=11) == [
        reserved("two", member("a", *WHOLE)),
        over("one", "two", now_s=11),
    ]


def test_no_job_yields_before_its_slice_is_over() -> None:
    state = one_runs(turn("two"))
    assert decisions(state, now_s=10.9) == []


def test_a_slice_counts_from_when_the_job_was_seen_to_run() -> None:
    state = given(
        registered("a"),
        sliced(),
        waiting("one", **SAVES, gpus=4),
        placed("one", member("a", *WHOLE)),
        turn("two"),
    )
    assert decisions(state, now_s=20) == []
    hear(state, started("one", "a"))
    assert decisions(state, now_s=25) == decisions(state, now_s=34) == []
    assert [fact.job_id for fact in decisions(state, now_s=35)] == ["two", "one"]


def test_a_job_after_its_slice_waits_last_and_loses_no_retry() -> None:
    state = one_runs(turn("two"), turn("three"))
    decisions(state, now_s=11)
    stopped(state, "one")
    again, begun = decisions(state, now_s=12)
    assert again == f.JobRequeued(job_id=JobId("one"), attempt=1, reason="preempted", counted=False)
    assert isinstance(begun, f.JobPlaced) and begun.job_id == "two"
    hear(state, started("two", "a"))
    decisions(state, now_s=13)
    assert [fact.job_id for fact in decisions(state, now_s=23)] == ["three", "two"]
    stopped(state, "two")
    hear(state, started("three", "a"))
    assert [fact.job_id for fact in decisions(state, now_s=24)] == ["two", "three"]
    hear(state, started("three", "a"))
    decisions(state, now_s=25)
    assert decisions(state, now_s=35)[0] == reserved("one", member("a", *WHOLE), attempt=2)


@pytest.mark.parametrize(
    "asked",
    [
        {"preemptible": False, "checkpoint_grace_s": 0},
        {"checkpoint_grace_s": 0},
        {"priority": 9},
        {"queue": "other"},
    ],
)
def test_no_room_is_made_for_a_job_that_takes_no_turns(asked: dict[str, object]) -> None:
    state = one_runs(sliced(queue="other"), turn("two", **asked))
    assert decisions(state, now_s=99) == []


def test_a_turn_that_the_log_took_late_is_over_as_much_later() -> None:
    state = one_runs(turn("two"))
    said = decisions(state, now_s=11)
    commit = f.Commit(
        version=f.VERSION,
        min_reader=f.VERSION,
        writer=subjects.SCHEDULER,
        number=1,
        epoch=state.epoch,
        at_ns=19 * SECOND_NS,
        seen=state.seq,
        facts=tuple(said),
    )
    state.skip_own(state.seq + 1, subjects.SCHEDULER, commit)
    stopped(state, "one")
    decisions(state, now_s=20)
    one, two = (state.cluster.jobs[JobId(job)] for job in ("one", "two"))
    assert (one.preemption.sliced_ns, two.preemption.sliced_ns) == (19 * SECOND_NS, 0)
    assert state.key_of(one)[:2] == (-10, 19 * SECOND_NS)


def test_a_job_without_time_to_save_is_not_preempted_for_a_slice() -> None:
    assert decisions(one_runs(turn("two"), checkpoint_grace_s=0), now_s=99) == []


def test_no_job_takes_turns_without_time_slices() -> None:
    state = given(registered("a"), running("one", *WHOLE, **SAVES), turn("two"))
    decisions(state)
    assert decisions(state, now_s=999) == []


def test_a_higher_priority_waits_for_no_slice_and_the_other_keeps_its_place() -> None:
    state = one_runs(turn("two"), turn("high", priority=90))
    assert decisions(state, now_s=1) == []
    state = one_runs()
    hear(state, *turn("high", priority=90))
    _, said = decisions(state, now_s=2)
    assert isinstance(said, f.JobPreempted) and not said.sliced
    assert state.cluster.jobs[JobId("one")].preemption.sliced_ns == 0


def test_where_jobs_take_turns_the_higher_priority_goes_first_whatever_the_policy() -> None:
    """Otherwise a job of low priority, which preempts no other job, would block those that take
    turns.
    """
    for policy in ("fifo", "srsf", "las", "deadline", "priority"):
        state = given(
            registered("a"),
            sliced(policy=policy),
            running("one", *WHOLE, **SAVES),
            turn("low", priority=1),
            turn("two"),
        )
        decisions(state)
        assert [fact.job_id for fact in decisions(state, now_s=11)] == ["two", "one"]


def test_a_job_runs_for_its_minimum_if_that_exceeds_the_slice() -> None:
    state = one_runs(turn("two"), min_run_s=30)
    assert decisions(state, now_s=12) == decisions(state, now_s=30) == []
    assert decisions(state, now_s=31) != []


def test_a_changed_slice_counts_at_once_for_running_jobs() -> None:
    state = one_runs(turn("two"))
    reset(state, sliced(20))
    assert decisions(state, now_s=12) == []
    reset(state, sliced(15))
    assert decisions(state, now_s=15) == []
    assert decisions(state, now_s=16) != []


def test_slices_that_begin_while_jobs_run_count_from_their_beginning() -> None:
    state = one_runs(sliced(0), turn("two"))
    assert decisions(state, now_s=50) == []
    reset(state, sliced(10, queue="other"))
    assert decisions(state, now_s=51) == []
    reset(state, sliced(10))
    assert decisions(state, now_s=52) != []


def test_a_changed_slice_does_not_affect_jobs_that_have_not_begun() -> None:
    state = given(
        registered("a"),
        sliced(),
        waiting("one", **SAVES, gpus=4),
        placed("one", member("a", *WHOLE)),
        turn("two"),
    )
    reset(state, sliced(1))
    assert decisions(state, now_s=9) == []


def test_a_new_scheduler_restarts_the_count_of_slices() -> None:
    state = State(one_runs(turn("two")).cluster)
    state.begin(1, 9 * SECOND_NS)
    assert decisions(state, now_s=9) == decisions(state, now_s=18) == []
    assert decisions(state, now_s=19) != []


def test_a_gang_makes_room_whole_and_is_given_room_whole() -> None:
    nodes = [registered(name, gpus=2) for name in ("a", "b")]
    gang = gang_on("a", "b", **{name: word for name, word in SAVES.items() if name != "priority"})
    state = given(
        *nodes,
        sliced(),
        gang,
        turn("pair", gpus=2),
        turn("small", gpus=2),
        turn("again", nodes=2, gpus=2),
    )
    decisions(state)
    assert [fact.job_id for fact in decisions(state, now_s=11)] == ["pair", "gang"]
    for node in ("a", "b"):
        hear(
            state, finished("gang", node, None, signal=15, reason="stopped"), released("gang", node)
        )
    assert [fact.job_id for fact in decisions(state, now_s=12)] == ["gang", "pair", "small"]
    hear(state, started("pair", node_of(state, "pair")))
    assert decisions(state, now_s=20) == decisions(state, now_s=31) == []
    hear(state, started("small", node_of(state, "small")))
    decisions(state, now_s=32)
    assert decisions(state, now_s=41) == []
    assert sorted(fact.job_id for fact in decisions(state, now_s=42)) == ["again", "pair", "small"]


def test_the_next_element_of_an_array_takes_a_turn() -> None:
    state = one_runs(turn("sweep", array=parse("0-3%2")))
    begun, kept, said = decisions(state, now_s=11)
    assert (
        isinstance(begun, f.ElementBegun)
        and isinstance(kept, f.DevicesReserved)
        and kept.job_id == "sweep_0"
    )
    assert said == over("one", "sweep_0", now_s=11)


def test_why_says_whose_turn_it_is() -> None:
    state = given(registered("a"), sliced(600), running("one", *WHOLE, **SAVES), turn("two"))
    decisions(state, now_s=180)
    assert (
        "waits for its turn: one has run 3 of its 10 minutes"
        in explain(state, JobId("two"))["answer"]
    )
    decisions(state, now_s=599)
    assert "its turn" in explain(state, JobId("two"))["answer"]
    assert (
        "its turn"
        not in explain(one_runs(turn("two", checkpoint_grace_s=0)), JobId("two"))["answer"]
    )


def test_why_says_who_has_waited_longer_for_its_turn() -> None:
    state = one_runs(turn("two"), turn("three"))
    decisions(state, now_s=11)
    stopped(state, "one")
    decisions(state, now_s=12)
    (first,) = explain(state, JobId("one"))["before"]
    assert first == {"job_id": "three", "why": "has waited longer for its turn"}
