"""Each rule of `history_checks.py` finds the violation that is planted for it, and stays quiet
without one.
"""

from typing import Any

from tests.chaos import checks
from tests.chaos.machines import history_checks as rules
from tests.chaos.machines import spans
from tests.chaos.machines.history import CANCEL, CLUSTER, READ, SUBMIT, UNKNOWN, Operation

JOBS: dict[str, dict[str, Any]] = {
    "j1": {"name": "a", "state": "completed", "attempt": 1},
    "j2": {"name": "b", "state": "completed", "attempt": 1},
}
LINES = (
    "start j1 1 10 100 0 node-1 red g1,g2",
    "beat j1 1 10 200 0 node-1 red g1,g2",
    "end j1 1 10 300 0 node-1 red g1,g2",
    "start j2 1 11 400 0 node-1 blue g1",
    "end j2 1 11 500 0 node-1 blue g1",
)


def operation(kind: str, at_ns: int = 0, status: int = 200, **more: Any) -> Operation:
    gateway = more.pop("gateway", "gateway-a")
    return Operation(
        kind=kind, gateway=gateway, began_ns=at_ns, ended_ns=at_ns + 10, status=status, **more
    )


def submitted(name: str, job_id: str, status: int = 201, at_ns: int = 0) -> Operation:
    return operation(SUBMIT, at_ns, status, name=name, key=name, job_id=job_id)


def shown(job_id: str, state: str, at_ns: int, **more: Any) -> Operation:
    return operation(READ, at_ns, job_id=job_id, state=state, **more)


GOOD = (
    submitted("a", "j1"),
    submitted("b", "", UNKNOWN),
    submitted("b", "j2", 200, 20),
    submitted("c", "", 422),
    shown("j1", "running", 30),
    shown("j1", "completed", 50),
    shown("j1", "running", 70, gateway="gateway-b"),
    operation(CLUSTER, 40, seq=7),
    operation(CLUSTER, 60, seq=7),
    operation(CLUSTER, 80, seq=5, gateway="gateway-b"),
)


def found(*added: Operation, **changed: Any) -> list[str]:
    told = {"jobs": JOBS, "lines": LINES, **changed}
    return rules.on_history([*GOOD, *added], told["jobs"], spans.read(told["lines"]))


def test_a_correct_history_breaks_no_rule() -> None:
    assert found() == []


def test_an_acknowledged_job_that_is_gone_is_found() -> None:
    assert "no such job exists" in found(submitted("d", "j9"))[0]


def test_a_job_that_is_stored_under_another_name_is_found() -> None:
    assert any("no such job exists" in line for line in found(submitted("d", "j1")))


def test_a_request_that_is_stored_twice_is_found() -> None:
    jobs = {**JOBS, "j3": {"name": "b", "state": "completed", "attempt": 1}}
    assert any("stored 2 times (j2, j3)" in line for line in found(jobs=jobs))


def test_a_job_that_no_client_submitted_is_found() -> None:
    jobs = {**JOBS, "j3": {"name": "z", "state": "completed", "attempt": 1}}
    assert "no client submitted it" in found(jobs=jobs)[0]


def test_a_refused_job_that_is_stored_is_found() -> None:
    jobs = {**JOBS, "j3": {"name": "c", "state": "completed", "attempt": 1}}
    assert "refused with 422, and is stored" in found(jobs=jobs)[0]


def test_a_cancelled_job_that_begins_again_is_found() -> None:
    cancelled = operation(CANCEL, 100, 202, job_id="j1")
    late = 110 + rules.LATE_ORDER_NS
    assert found(cancelled, lines=(*LINES, f"start j1 2 12 {late} 0 node-2 red g9")) == []
    said = found(cancelled, lines=(*LINES, f"start j1 2 12 {late + 1} 0 node-2 red g9"))
    assert "j1 attempt 2 began 40.0 s after" in said[0]


def test_an_ended_job_that_is_shown_alive_again_is_found() -> None:
    assert "as completed, and later as running" in found(shown("j1", "running", 90))[0]


def test_a_gateway_whose_sequence_falls_is_found() -> None:
    assert "was at 7, and later at 6" in found(operation(CLUSTER, 90, seq=6))[0]


def test_a_gateway_that_forgets_what_it_acknowledged_is_found() -> None:
    forgotten = operation(READ, 90, 404, job_id="j1")
    assert "acknowledged j1, and later did not know it" in found(forgotten)[0]
    assert found(operation(READ, 90, 404, job_id="j1", gateway="gateway-b")) == []


def test_two_jobs_on_one_gpu_are_found() -> None:
    assert rules.no_two_jobs_on_a_gpu(spans.read(LINES)) == []
    early = spans.read((*LINES, "start j3 1 12 250 0 node-1 red g2"))
    assert "g2 was used by j1 attempt 1 and j3 attempt 1" in rules.no_two_jobs_on_a_gpu(early)[0]


def test_a_short_job_within_a_long_one_on_one_gpu_is_found_and_so_is_the_next() -> None:
    lines = (
        *LINES,
        "start j3 1 12 110 0 node-1 red g2",
        "end j3 1 12 120 0 node-1 red g2",
        "start j4 1 13 290 0 node-1 red g2",
    )
    assert len(rules.no_two_jobs_on_a_gpu(spans.read(lines))) == 2


def test_a_tenant_over_its_limit_is_found() -> None:
    assert rules.quotas_are_held(spans.read(LINES), {"red": 2, "blue": 1}) == []
    assert rules.quotas_are_held(spans.read(LINES), {"red": 1}) == [
        "tenant red used 2 GPUs at once, and its limit is 1"
    ]
    both = spans.read(
        (*LINES, "start j3 1 12 150 0 node-2 red g7", "end j3 1 12 160 0 node-2 red g7")
    )
    assert "used 3 GPUs" in rules.quotas_are_held(both, {"red": 2})[0]


def test_a_rank_that_starts_twice_is_found() -> None:
    assert rules.no_rank_started_twice(spans.read(LINES)) == []
    twice = spans.read((*LINES, "start j1 1 19 310 0 node-2 red g8"))
    assert "2 starts, of the processes [10, 19]" in rules.no_rank_started_twice(twice)[0]


def test_two_attempts_of_a_gang_that_overlap_in_different_ranks_are_found() -> None:
    lines = (
        "start j5 1 20 100 0 node-1 red g1",
        "end j5 1 20 200 0 node-1 red g1",
        "start j5 1 21 100 1 node-2 red g3",
        "beat j5 1 21 400 1 node-2 red g3",
        "start j5 2 22 300 0 node-3 red g5",
    )
    lives = spans.lives(spans.read(lines))
    assert lives["j5", 1].starts == 1 and lives["j5", 1].ends == 1
    assert "attempt 1 lived on" in checks.no_two_attempts_lived_at_once(lives)[0]


def test_views_that_differ_are_found_with_the_place() -> None:
    view = {"jobs": {"j1": {"state": "completed", "nodes": ["node-1"]}}}
    other = {"jobs": {"j1": {"state": "running", "nodes": ["node-2"]}, "j2": {}}}
    assert rules.views_agree({"fold": view, "gateway-a": view}) == []
    assert rules.views_agree({"fold": view, "gateway-a": other}) == [
        "fold and gateway-a differ at /jobs/j1/nodes/0: 'node-1' and 'node-2'",
        "fold and gateway-a differ at /jobs/j1/state: 'completed' and 'running'",
        "fold and gateway-a differ at /jobs/j2: None and {}",
    ]
