"""Each rule of `checks.py` finds the fault that is planted for it, and stays quiet without one."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos import checks, lives, upgrading
from tests.chaos.model_checks import Kill

NAMES = {"a": "completed", "b": "failed"}
FACTS = {
    "j1": ["job.submitted", "job.placed", "job.requeued", "job.placed", "job.closed"],
    "j2": ["job.placed", "job.closed"],
}
LINES = (
    "start j1 1 10 100",
    "beat j1 1 10 200",
    "start j1 2 11 300",
    "end j1 2 11 400",
    "start j2 1 12 100",
)


def _jobs() -> dict[str, dict[str, Any]]:
    return {
        "j1": {"name": "a", "state": "completed", "reason": "", "attempt": 2},
        "j2": {"name": "b", "state": "failed", "reason": "failed", "attempt": 1},
    }


def _found(
    lines: tuple[str, ...] = LINES, facts: dict[str, list[str]] = FACTS, **changed: Any
) -> list[str]:
    jobs = _jobs()
    jobs["j1"] |= changed
    return checks.on_jobs(jobs, NAMES, facts, lives.read(lines))


def test_correct_lives_break_no_rule() -> None:
    assert _found() == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (lambda: _found(state="running"), "is running"),
        (lambda: _found(state="failed"), "should be completed"),
        (lambda: _found(name="b"), "b is stored 2 times"),
        (
            lambda: _found(facts={**FACTS, "j2": ["job.placed", "job.closed", "job.closed"]}),
            "2 job.closed",
        ),
        (
            lambda: _found(facts={**FACTS, "j2": ["job.placed", "job.placed", "job.closed"]}),
            "placed 2 times",
        ),
        (lambda: _found((*LINES, "start j1 1 10 150")), "2 start lines"),
        (lambda: _found((*LINES, "beat j1 1 99 150")), "of the processes [10, 99]"),
        (lambda: _found((*LINES, "beat j1 1 10 301")), "lived on"),
        (lambda: _found((*LINES, "end j1 2 11 401")), "did not write its end once"),
        (lambda: _found(LINES[:3]), "did not write its end once"),
        (lambda: _found(LINES[:3]), "wrote no end"),
        (lambda: _found((*LINES, "start j1 3 13 500")), "the cluster knows 2"),
        (lambda: _found((*LINES, "start j9 1 13 500")), "no such job"),
    ],
)
def test_a_planted_fault_is_found(found: Callable[[], list[str]], said: str) -> None:
    assert any(said in line for line in found()), found()


def test_a_job_that_was_cancelled_before_its_placement_breaks_no_rule() -> None:
    never = {"j2": ["job.submitted", "job.closed"]}
    jobs = {"j2": {**_jobs()["j2"], "state": "cancelled"}}
    assert checks.every_attempt_was_placed_once(jobs, never) == []
    assert len(checks.every_attempt_was_placed_once(_jobs(), never)) == 1


def test_a_gpu_that_is_held_or_missing_is_found() -> None:
    free = {"uuid": "g", "node_id": "n", "state": "AVAILABLE"}
    assert checks.every_gpu_is_free([free], 1) == []
    assert checks.every_gpu_is_free([{**free, "state": "IN_USE"}], 1) == ["g of n is IN_USE"]
    assert checks.every_gpu_is_free([free], 2) == ["1 GPUs are known, and there are 2"]


def test_a_job_that_outlives_its_frozen_node_s_lease_is_found() -> None:
    found = lives.read(["start j1 1 10 1000000000", "beat j1 1 10 5000000001"])
    assert checks.frozen_jobs_died_within_their_lease(found, 1_000_000_000, 4_001, ["j1"]) == []
    assert len(checks.frozen_jobs_died_within_their_lease(found, 1_000_000_000, 4_000, ["j1"])) == 1


def test_a_job_that_does_not_outlive_an_agent_s_end_or_runs_twice_is_found() -> None:
    lines, kill = (
        ["start j1 1 10 100", "beat j1 1 10 900", "start j2 1 11 100", "beat j2 1 11 900"],
        Kill("node-1", 500),
    )
    assert upgrading.violations(lives.read(lines), [kill], 2) == []
    assert upgrading.violations(lives.read(lines), [kill], 3) == ["2 of 3 jobs have lived"]
    assert upgrading.violations(lives.read(lines[:3]), [kill], 2) == [
        "1 jobs did not live when node-1 was ended: j2"
    ]
    assert upgrading.violations(lives.read([*lines, "start j1 2 12 950"]), [kill], 2) == [
        "j1 has an attempt 2"
    ]
