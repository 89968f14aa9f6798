"""Rows of sacct for jobs of which only facts are left."""

from typing import Any

from libs.cli.slurm.ended_jobs import job_of
from libs.cli.slurm.states import state_of


def fact(kind: str, at: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "at": at, "fact": {"job_id": "ja", **fields}}


SPEC = {"command": ["train"], "name": "night", "gpus": 2, "time_limit_s": 60}
SUBMITTED = fact("job.submitted", "t1", spec=SPEC, tenant="physics", user="ada")
CLOSED = fact("job.closed", "t9", attempt=2, outcome="failed", reason="exited", exit_code=3)


def placed(attempt: int, at: str, *nodes: str) -> dict[str, Any]:
    members = [{"node_id": node} for node in nodes]
    return fact("job.placed", at, attempt=attempt, members=members)


def test_a_job_has_what_its_facts_say() -> None:
    job = job_of(
        [
            SUBMITTED,
            fact("job.admitted", "t2"),
            fact("job.queued", "t2"),
            placed(1, "t3", "n1"),
            fact("job.started", "t4", attempt=1, node_id="n1"),
            fact("job.requeued", "t5", attempt=1, reason="node_lost", counted=False),
            placed(2, "t6", "n2", "n3"),
            fact("job.started", "t7", attempt=1, node_id="n1"),
            fact("job.started", "t7", attempt=2, node_id="n2"),
            fact("job.started", "t8", attempt=2, node_id="n3"),
            CLOSED,
        ]
    )
    assert job is not None
    assert (job["id"], job["name"], job["user"], job["tenant"]) == ("ja", "night", "ada", "physics")
    assert (job["queue"], job["gpus"], job["time_limit_s"], job["attempt"]) == ("default", 2, 60, 2)
    assert (job["node_ids"], job["exit_code"], job["reason"]) == (["n2", "n3"], 3, "exited")
    times = [job[f"{name}_at"] for name in ("submitted", "queued", "started", "ended")]
    assert times == ["t1", "t5", "t7", "t9"]
    assert state_of(job).name == "FAILED"


def test_a_job_that_ran_too_long_has_timed_out() -> None:
    job = job_of(
        [
            SUBMITTED,
            placed(1, "t3", "n1"),
            fact("job.finished", "t4", attempt=1, node_id="n1", reason="time_limit"),
            CLOSED,
        ]
    )
    assert job is not None and state_of(job).name == "TIMEOUT"


def test_an_element_has_the_fields_of_its_array() -> None:
    begun = fact("array.element_begun", "t2", array="ja", number=7)
    begun["fact"]["job_id"] = "ja_7"
    closed = {**CLOSED, "fact": {**CLOSED["fact"], "job_id": "ja_7", "outcome": "cancelled"}}
    job = job_of([begun, closed], [SUBMITTED])
    assert job is not None
    assert (job["id"], job["element_of"], job["name"]) == ("ja_7", "ja", "night")
    assert state_of(job).name == "CANCELLED" and "started_at" not in job


def test_a_rejected_job_has_failed() -> None:
    job = job_of([SUBMITTED, fact("job.rejected", "t2", reason="over the limit")])
    assert job is not None and (job["reason"], job["ended_at"]) == ("over the limit", "t2")


def test_facts_without_a_submission_are_no_job() -> None:
    assert job_of([CLOSED]) is None
    assert job_of([]) is None
