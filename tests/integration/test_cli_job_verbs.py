"""The verbs for jobs against a fake gateway: submit, logs, cancel, kill, wait, why, state."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli_world import (
    Problem,
    World,
    ended,
    job,
    output,
    state,
)

JOB = "/v1/jobs/jaaaaaaaaaa"


BATCH = "/v1/jobs:batch"


def accepted(*ids: str) -> dict[str, Any]:
    """The answer of a gateway that accepted a batch."""
    return {"jobs": [{"status": 201, "job": {"id": each}} for each in ids]}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.routes["GET " + JOB] = job()
    made.routes["GET /v1/jobs/train"] = job()
    yield made
    made.close()


def test_submit_prints_only_ids_and_sends_the_job_file(world: World) -> None:
    world.routes[f"POST {BATCH}"] = accepted("ja", "jb")
    (world.home / "jobs.yaml").write_text(
        "command: [a]\ngpus: 2\n---\ncommand: b | c\nworkdir: /x\nuser: eve\n"
    )
    assert world.run("submit", "jobs.yaml") == (0, "ja\njb\n", "")
    (sent,) = [request.json for request in world.asked("POST", BATCH)]
    assert not sent["all_or_nothing"]
    assert sent["jobs"] == [
        {"command": ["a"], "gpus": 2, "user": "ada", "workdir": str(world.home)},
        {"command": ["/bin/sh", "-c", "b | c"], "user": "eve", "workdir": "/x"},
    ]


def test_refused_job_of_several_files_keeps_back_no_other_one(world: World) -> None:
    refusal = {"status": 422, "problem": {"status": 422, "detail": "gpus: 99 is out of bounds"}}
    both = accepted("ja", "jc")
    world.routes[f"POST {BATCH}"] = {"jobs": [both["jobs"][0], refusal, both["jobs"][1]]}
    for name in "abc":
        (world.home / f"{name}.yaml").write_text("command: [a]\n")
    assert world.run("submit", "a.yaml", "b.yaml", "c.yaml") == (
        1,
        "ja\njc\n",
        "muster: b.yaml:1: gpus: 99 is out of bounds\n",
    )


def test_jobs_that_belong_together_are_refused_together(world: World) -> None:
    world.routes[f"POST {BATCH}"] = Problem(422, "jobs[1]: gpus: no", {"job": 1})
    (world.home / "jobs.yaml").write_text("command: [a]\n---\ncommand: [b]\n")
    assert world.run("submit", "--all-or-nothing", "jobs.yaml") == (
        1,
        "",
        "muster: jobs.yaml:3: gpus: no\n",
    )
    assert world.asked("POST", BATCH)[0].json["all_or_nothing"]
    (world.home / "jobs.yaml").write_text("command: [a]\n---\n" * 101)
    code, _, err = world.run("submit", "--all-or-nothing", "jobs.yaml")
    assert code == 2 and "101 jobs are too many: give at most 100" in err


@pytest.mark.parametrize("form", ["table", "json"])
def test_accepted_jobs_are_printed_when_a_later_request_fails(world: World, form: str) -> None:
    ids = [f"j{number}" for number in range(100)]
    parts = [accepted(*ids), Problem(403, "the key was revoked")]
    world.routes[f"POST {BATCH}"] = lambda request: parts.pop(0)
    (world.home / "jobs.yaml").write_text("command: [a]\n---\n" * 101 + "command: [a]\n")
    code, out, err = world.run("submit", "-o", form, "jobs.yaml")
    assert code == 1
    assert (out.split() if form == "table" else [job["id"] for job in json.loads(out)]) == ids
    assert err == (
        "muster: the request for jobs.yaml:201 and the jobs after it failed: the key was revoked\n"
    )


def test_gateway_without_batches_gets_one_request_for_each_job(world: World) -> None:
    ids = iter(("ja", "jb"))
    world.routes[f"POST {BATCH}"] = Problem(404, "no such route")
    world.routes["POST /v1/jobs"] = lambda request: {"id": next(ids), "warnings": []}
    (world.home / "jobs.yaml").write_text("command: [a]\n---\ncommand: [b]\n")
    assert world.run("submit", "jobs.yaml") == (0, "ja\njb\n", "")


def test_submit_reads_standard_input_and_commands(world: World) -> None:
    world.routes["POST /v1/jobs"] = {"id": "ja", "warnings": ["env X_TOKEN looks like a secret"]}
    assert world.run("submit", "-", stdin=b"command: [a]\n") == (
        0,
        "ja\n",
        "muster: warning: env X_TOKEN looks like a secret\n",
    )
    assert world.run("submit", "-g", "1", "--", "python", "-u", "x.py")[0] == 0
    assert world.asked("POST", "/v1/jobs")[-1].json["command"] == ["python", "-u", "x.py"]


def test_no_job_is_submitted_if_one_document_is_invalid(world: World) -> None:
    (world.home / "jobs.yaml").write_text("command: [a]\n---\ncommand: [b]\ngpu: 2\n")
    assert world.run("submit", "jobs.yaml") == (
        2,
        "",
        "muster: jobs.yaml:4: unknown key 'gpu' (did you mean 'gpus'?)\n",
    )
    assert world.seen == []


def test_a_refused_job_is_named_by_its_place_in_the_file(world: World) -> None:
    world.routes["POST /v1/jobs"] = Problem(422, "gpus: 99 is out of bounds")
    (world.home / "job.yaml").write_text("\ncommand: [a]\ngpus: 99\n")
    assert world.run("submit", "job.yaml") == (
        1,
        "",
        "muster: job.yaml:2: gpus: 99 is out of bounds\n",
    )


def test_a_dry_run_submits_nothing(world: World) -> None:
    world.routes["POST /v1/jobs"] = {"dry_run": True, "spec": {}, "warnings": []}
    (world.home / "job.yaml").write_text("command: [a]\n")
    assert world.run("submit", "--dry-run", "job.yaml") == (0, "job.yaml:1 is valid\n", "")
    assert world.asked("POST", "/v1/jobs")[0].query == {"dry_run": "true"}


def test_logs_prints_each_stream_to_the_same_stream(world: World) -> None:
    world.routes["GET " + JOB + "/output"] = lambda request: iter(
        (request.query["stream"].encode() + b"\n",)
    )
    assert world.run("logs", "train") == (0, "stdout\n", "stderr\n")
    assert world.run("logs", "--stderr", "train") == (0, "", "stderr\n")


def test_logs_of_a_job_without_output_say_so(world: World) -> None:
    world.routes["GET " + JOB + "/output"] = lambda request: iter(())
    world.routes["GET /v1/jobs/train"] = job(state="failed", exit_code=1)
    assert world.run("logs", "train") == (0, "", "muster: no output; exit code 1\n")
    assert world.run("logs", "--attempt", "7", "train") == (0, "", "muster: no output\n")
    world.routes["GET /v1/jobs/train"] = job(state="running")
    assert world.run("logs", "train") == (0, "", "muster: no output; the job is running\n")
    world.routes["GET " + JOB + "/attach"] = lambda request: iter([ended(3, "failed")])
    assert world.run("logs", "-f", "train") == (0, "", "muster: no output; exit code 3\n")


def test_logs_sends_the_number_of_an_earlier_attempt(world: World) -> None:
    world.routes["GET /v1/jobs/train"] = job(attempt=2)
    world.routes["GET " + JOB + "/output"] = lambda request: iter(
        [request.query["attempt"].encode(), request.query["rank"].encode()]
    )
    assert world.run(
        "logs", "-f", "--attempt", "1", "--rank", "3", "--stream", "stdout", "train"
    ) == (0, "13", "")


def test_deleted_logs_are_reported_in_one_line(world: World) -> None:
    world.routes["GET /v1/jobs/train"] = job(attempt=2)
    world.routes["GET " + JOB + "/output"] = Problem(
        410, "the stdout of job j, attempt 1, rank 0 is gone"
    )
    assert world.run("logs", "--attempt", "1", "train") == (
        1,
        "",
        "muster: the stdout of job j, attempt 1, rank 0 is gone\n",
    )


def test_logs_follows_until_the_job_ends(world: World) -> None:
    frames = (
        state("running"),
        output("stdout", 0, b"a\n"),
        output("stderr", 0, b"b\n"),
        ended(3, "failed"),
    )
    world.routes["GET " + JOB + "/attach"] = lambda request: iter(frames)
    assert world.run("logs", "-f", "train") == (0, "a\n", "b\n")
    assert world.run("logs", "-f", "--stream", "stdout", "train") == (0, "a\n", "")


def test_cancel_sends_signal_and_grace_and_continues_after_a_refusal(world: World) -> None:
    world.routes["POST /v1/jobs/b/cancel"] = Problem(409, "job b has ended already")
    world.routes["POST " + JOB + "/cancel"] = job()
    assert world.run("cancel", "-s", "INT", "--grace", "1m", "b", "jaaaaaaaaaa") == (
        1,
        "",
        "muster: job b has ended already\n",
    )
    assert world.asked("POST", JOB + "/cancel")[0].json == {
        "signal": "INT",
        "grace_s": 60,
        "user": "ada",
    }


def test_kill_sends_a_kill_request(world: World) -> None:
    world.routes["POST " + JOB + "/kill"] = job()
    assert world.run("kill", "jaaaaaaaaaa") == (0, "", "")


def test_wait_exits_with_the_jobs_code_when_it_has_ended(world: World) -> None:
    answers = iter((job(), Problem(503, "away"), job(state="failed", exit_code=9)))
    world.routes["GET /v1/jobs/train/wait"] = lambda request: next(answers)
    world.routes["GET " + JOB + "/wait"] = lambda request: next(answers)
    assert world.run("wait", "train") == (9, "", "")


def test_wait_stops_at_its_timeout(world: World) -> None:
    world.routes["GET /v1/jobs/train/wait"] = job()
    assert world.run("wait", "--timeout", "0", "train") == (
        124,
        "",
        "muster: job train is still running after 0 s\n",
    )


def test_why_prints_the_answer_the_blockers_and_the_remedy(world: World) -> None:
    blockers = [{"what": "devices in use", "count": 3, "detail": "node-1, node-2, node-3"}]
    answer = {
        "job_id": "j",
        "state": "queued",
        "answer": "not enough is free",
        "blockers": blockers,
        "remedy": "wait",
        "at": 9,
    }
    world.routes["GET /v1/jobs/train/why"] = answer
    assert world.run("why", "train", "--at", "9")[1].splitlines() == [
        "queued: not enough is free",
        "",
        "COUNT  WHAT            DETAIL",
        "    3  devices in use  node-1, node-2, node-3",
        "",
        "Remedy: wait",
    ]
    assert world.seen[-1].query == {"at": "9"}


def test_state_is_printed_now_or_at_a_sequence_number(world: World) -> None:
    world.routes["GET /v1/cluster"] = {"seq": 12}
    world.routes["GET /v1/state"] = lambda request: {"seq": int(request.query["at"])}
    assert json.loads(world.run("state")[1]) == {"seq": 12}
    assert json.loads(world.run("state", "--at", "3")[1]) == {"seq": 3}


def test_logs_report_that_a_job_was_pruned(world: World) -> None:
    world.routes[f"GET {JOB}/output"] = Problem(
        410, "the stdout of job j is gone: it was pruned on node n1"
    )
    assert world.run("logs", "--stream", "stdout", "train") == (
        1,
        "",
        "muster: the stdout of job j is gone: it was pruned on node n1\n",
    )
