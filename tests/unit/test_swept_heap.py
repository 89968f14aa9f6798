"""Heaps of the scheduler's state drop stale entries, so that a follower's memory stays bounded."""

import pytest
from hypothesis import given as draw
from hypothesis import strategies as st
from msgspec.structs import replace

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.folds import job_fold
from libs.common.model import Allocation, JobId
from services.scheduler.state import swept_heap
from services.scheduler.state.buckets import ENQUEUE, STOP, WAIT, Buckets
from services.scheduler.state.state import State
from services.scheduler.state.swept_heap import SweptHeap
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
from tests.unit.preemption_facts import running
from tests.unit.scheduler_decisions import hear

SWEPT = 8
JOBS = 40
LIMIT_S = 3_600

MOVES = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from((ENQUEUE, STOP, WAIT, "", "look"))), max_size=60
)


def is_live(entry: tuple[int, str]) -> bool:
    return entry[1].startswith("live")


def whole_life(job: str) -> list[AnyFact]:
    """The facts of a preemptible job with a time limit that runs and ends."""
    return [
        *running(job, 0, time_limit_s=LIMIT_S),
        finished(job, "a"),
        released(job, "a"),
        f.JobClosed(job_id=JobId(job), attempt=1, outcome="completed", exit_code=0),
    ]


def whole_allocation(job: str) -> list[AnyFact]:
    """The facts of an allocation that begins and ends."""
    return [
        *waiting(job, gpus=1, allocation=Allocation(LIMIT_S)),
        replace(placed(job, member("a", 0)), expires_ns=LIMIT_S * SECOND_NS),
        started(job, "a"),
        finished(job, "a"),
        released(job, "a"),
        f.JobClosed(job_id=JobId(job), attempt=1, outcome="completed", exit_code=0),
    ]


def sizes(state: State) -> list[int]:
    of_buckets = [len(heap.entries) for heap in state.buckets.heaps.values()]
    return [len(state.overruns.entries), len(state.turns.entries), *of_buckets]


def test_a_follower_forgets_the_jobs_that_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swept_heap, "SWEPT", SWEPT)
    monkeypatch.setattr(job_fold, "ENDED_JOBS_KEPT", 2)
    state = given(registered("a"))
    for number in range(JOBS):
        hear(state, *whole_life(f"j{number}"), *whole_allocation(f"a{number}"))
    assert max(sizes(state)) <= 2 * SWEPT
    assert not state.preemptible._begun


def test_a_sweep_keeps_the_entries_of_the_jobs_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swept_heap, "SWEPT", SWEPT)
    state = given(registered("a"), running("long", 3, time_limit_s=LIMIT_S))
    (long,) = state.overruns.entries
    for number in range(JOBS):
        hear(state, *whole_life(f"j{number}"))
    assert long in state.overruns.entries


def test_a_heap_that_has_doubled_drops_stale_entries_and_copies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(swept_heap, "SWEPT", 3)
    heap: SweptHeap[tuple[int, str]] = SweptHeap()
    for entry in ((3, "live"), (2, "gone"), (3, "live"), (1, "live too")):
        heap.add(entry, is_live)
    assert sorted(heap.entries) == [(1, "live too"), (3, "live")]
    for at in range(4, 8):
        heap.add((at, "gone"), is_live)
    assert heap.first() == (1, "live too") and len(heap.entries) == 2 + 1


def test_entries_before_a_time_come_out_in_order() -> None:
    heap: SweptHeap[tuple[int, str]] = SweptHeap()
    assert heap.first() is None
    for at in (5, 1, 3):
        heap.add((at, "x"), is_live)
    assert [at for at, _ in heap.take_before(5)] == [1, 3]
    assert heap.take() == (5, "x") and heap.first() is None


@draw(MOVES)
def test_sweeps_never_change_which_job_is_the_first_of_a_bucket(
    moves: list[tuple[int, str]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        never = Buckets()
        patch.setattr(swept_heap, "SWEPT", 0)
        often = Buckets()
        for number, bucket in moves:
            if bucket == "look":
                assert [never.first(each) for each in (ENQUEUE, STOP)] == [
                    often.first(each) for each in (ENQUEUE, STOP)
                ]
            else:
                for buckets in (never, often):
                    buckets.move(JobId(f"j{number}"), bucket, number)
