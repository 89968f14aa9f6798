"""A job that nodes refuse waits longer each time, avoids them for a while, and ends after a bounded
number of attempts.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.model import JobId, NodeId
from libs.common.state.refusals import Refusals
from services.scheduler.decide.attempts import REFUSALS_MAX, back_off_ns
from services.scheduler.decide.decide import decide
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
    tell,
    waiting,
)

J = JobId("j")
HOUR = 3_600
A, B = NodeId("a"), NodeId("b")
# The node's answer to a placement; None: none yet.
Answer = Callable[[str, int], AnyFact | None]


def decisions(state: State, now_s: float) -> list[AnyFact]:
    said: list[AnyFact] = []
    while facts := decide(state, int(now_s * SECOND_NS)):
        said.extend(facts)
        state.apply_own(facts, int(now_s * SECOND_NS))
        assert len(said) < 100, f"it never ends: {said[-3:]}"
    return said


def refuses(*nodes: str) -> Answer:
    def answered(node: str, attempt: int) -> AnyFact | None:
        if node not in nodes:
            return None
        return f.JobRefused(
            job_id=J, attempt=attempt, node_id=NodeId(node), reason="no disk: it is full"
        )

    return answered


def run(state: State, answer: Answer, until_s: int, from_s: int = 1) -> list[tuple[int, str]]:
    """Let time pass by the second and the nodes answer at once; (second, node) of each
    placement.
    """
    found: list[tuple[int, str]] = []
    for now_s in range(from_s, until_s):
        for _ in range(200):
            new = [
                fact
                for fact in decisions(state, now_s)
                if isinstance(fact, f.JobPlaced) and fact.job_id == J
            ]
            if not new:
                break
            for fact in new:
                node = fact.members[0].node_id
                found.append((now_s, node))
                said = answer(node, fact.attempt)
                if said is not None:
                    state.refresh(tell(state.cluster, said, now_s))
    return found


def job(state: State) -> Any:
    return state.cluster.jobs[J]


@pytest.mark.attack
def test_a_job_refused_by_every_node_is_tried_ever_more_slowly_and_then_fails() -> None:
    state = given(registered("a"), registered("b"), waiting("j"))
    found = run(state, refuses("a", "b"), HOUR)
    assert len(found) == REFUSALS_MAX
    assert len([1 for now_s, _ in found if now_s <= 2]) <= 2
    assert (job(state).state, job(state).reason) == ("failed", "refused: no disk: it is full")


def test_a_node_that_refused_is_avoided_while_another_one_is_able() -> None:
    state = given(registered("a"), registered("b", 2), waiting("j"))
    found = run(state, refuses("b"), HOUR)
    assert [node for _, node in found] == ["b", "a"]
    assert job(state).refusals.count == 1 and job(state).members.keys() == {"a"}


def test_a_node_that_refused_once_is_tried_again_after_a_while() -> None:
    state = given(registered("a"), waiting("j"))
    assert run(state, refuses("a"), 3) == [(1, "a")]
    assert [node for _, node in run(state, refuses(), 60, from_s=3)] == ["a"]


def test_a_job_waits_for_the_busy_node_that_is_able_and_why_says_so() -> None:
    busy = [*waiting("i", gpus=4), placed("i", member("b", 0, 1, 2, 3)), started("i", "b")]
    state = given(registered("a"), registered("b"), busy, waiting("j"))
    assert run(state, refuses("a"), 4) == [(1, "a")]
    answer = explain(state, J)
    whats = {each["what"]: each["detail"] for each in answer["blockers"]}
    assert whats == {"refused this job lately": "a", "GPUs in use: needs 1, at most 0 free": "b"}
    assert not any("submit it again" in change for change in answer["changes"])


def test_why_says_who_refused_a_job_that_waits_for_its_next_attempt() -> None:
    state = given(registered("a"), registered("b"), waiting("j"))
    run(state, refuses("a", "b"), 2)
    answer = explain(state, J)
    assert (
        "a refused it: no disk: it is full; refused 1 of at most 10 times, tried again in 2 s"
        in answer["answer"]
    )
    assert (answer["estimate"]["in_s"], answer["changes"]) == (2, [])


def test_why_does_not_call_a_job_impossible_because_its_only_node_refused_it() -> None:
    state = given(registered("a"), waiting("j"))
    run(state, refuses("a"), 4)
    answer = explain(state, J)
    assert answer["answer"].startswith("the nodes that could run it refused it: no disk")
    assert "excluded for a while" in answer["estimate"]["basis"]


def test_another_job_of_the_same_shape_is_placed_where_the_first_was_refused() -> None:
    state = given(registered("a"), waiting("j"), waiting("k"))
    run(state, refuses("a"), 4)
    assert state.cluster.jobs[JobId("k")].members.keys() == {"a"}


def test_a_scheduler_that_takes_over_keeps_to_the_wait() -> None:
    state = given(registered("a"), waiting("j"))
    run(state, refuses("a"), 3)
    heir = State(state.cluster)
    heir.begin(state.epoch, 0)
    assert run(heir, refuses(), 5, from_s=3) == []
    assert [node for _, node in run(heir, refuses(), 60, from_s=5)] == ["a"]


def test_a_cancelled_job_does_not_wait_for_its_next_attempt_to_end() -> None:
    state = given(registered("a"), waiting("j"))
    run(state, refuses("a"), 2)
    state.refresh(tell(state.cluster, f.CancelRequested(job_id=J)))
    decisions(state, 2)
    assert job(state).state == "cancelled"


def ended_by_its_machine(reason: str, until_s: int) -> tuple[State, int]:
    """A job that its only node ends at once, for so long; the number of its placements."""

    def ends(node: str, attempt: int) -> AnyFact:
        return f.JobFinished(
            job_id=J, attempt=attempt, node_id=NodeId(node), exit_code=None, reason=reason
        )

    state = given(registered("a"), waiting("j"))
    placements = 0
    for now_s in range(1, until_s):
        placements += len(run(state, ends, now_s + 1, from_s=now_s))
        for attempt in range(1, job(state).attempt + 1):
            gone = f.JobReleased(job_id=J, attempt=attempt, node_id=A)
            state.refresh(tell(state.cluster, gone, now_s))
    return state, placements


@pytest.mark.attack
@pytest.mark.parametrize("reason", ["gpu_fault", "supervisor_lost", "mps_lost"])
def test_a_job_whose_machine_ends_it_at_once_is_not_tried_as_fast_as_that(reason: str) -> None:
    assert ended_by_its_machine(reason, 8)[1] <= 6


def test_why_counts_the_attempts_that_machines_ended_and_says_when_the_next_one_begins() -> None:
    state, _ = ended_by_its_machine("gpu_fault", 6)
    answer = explain(state, J)
    assert answer["answer"] == (
        "4 attempts ended by their machines' faults, the last one as gpu_fault: "
        "it is tried again in 2 s"
    )
    (blocker,) = answer["blockers"]
    assert (blocker["what"], blocker["detail"]) == ("waits before its next attempt", "gpu_fault")


@pytest.mark.attack
def test_devices_reserved_for_the_next_attempt_do_not_pass_by_a_refusal() -> None:
    kept = f.DevicesReserved(job_id=J, attempt=2, members=(member("a", 0),))
    state = given(registered("a"), registered("b"), waiting("j"), placed("j", member("a", 0)), kept)
    state.refresh(
        tell(state.cluster, f.JobRefused(job_id=J, attempt=1, node_id=A, reason="no disk"), 1)
    )
    found = run(state, refuses(), 10)
    assert [(now_s > 2, node) for now_s, node in found] == [(True, "b")]


def test_refusals_before_an_attempt_that_ran_do_not_count_any_more() -> None:
    state = given(registered("a"), waiting("j"))
    run(state, refuses("a"), 8)
    before = job(state).refusals
    assert before.count > 1
    run(state, lambda node, attempt: started("j", node, attempt), 200, from_s=8)
    assert (job(state).state, job(state).refusals.count) == ("running", before.count)
    number = job(state).attempt
    state.refresh(
        tell(
            state.cluster,
            finished("j", "a", attempt=number, exit_code=None, reason="supervisor_lost"),
            201,
        )
    )
    state.refresh(tell(state.cluster, released("j", "a", attempt=number), 201))
    found = run(state, refuses("a"), 201 + HOUR, from_s=202)
    assert len(found) == REFUSALS_MAX
    assert job(state).state == "failed"


def test_the_wait_doubles_and_is_bounded() -> None:
    waits = [back_off_ns(times) // SECOND_NS for times in range(9)]
    assert waits == [1, 2, 4, 8, 16, 32, 64, 64, 64]


def test_expired_refusals_are_forgotten_and_counted() -> None:
    once = Refusals().with_one_more([A], "full", 10, 40)
    twice = once.with_one_more([B], "broken", 50, 90)
    assert (twice.count, twice.reason, twice.excluded) == (2, "broken", {B: 90})
    assert once.with_one_more([], "", 20, 0) == Refusals(1, "full", 20, {A: 40})


def test_its_times_are_over_when_they_have_passed() -> None:
    found = Refusals(1, "full", 10, {A: 40})
    assert (found.waits(10), found.waits(11), Refusals().waits(0)) == (True, False, False)
    assert (found.avoided(40), found.avoided(41)) == ((A,), ())
    assert (found.changes_ns(0), found.changes_ns(11), found.changes_ns(41)) == (10, 40, 0)


def test_a_requeue_of_an_older_log_has_no_wait() -> None:
    history: Sequence[AnyFact] = (
        *waiting("j"),
        placed("j", member("a", 0)),
        f.JobRefused(job_id=J, attempt=1, node_id=A, reason="no disk"),
        f.JobRequeued(job_id=J, attempt=1, reason="refused", counted=False),
    )
    state = given(registered("a"), history)
    assert job(state).refusals == Refusals()
    assert [type(fact) for fact in decisions(state, 1)] == [f.JobPlaced]
