"""`muster run` as a child process: output, input, exit codes, signals, dropped connections."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_world import (
    Break,
    FakeJob,
    Problem,
    Request,
    World,
    ended,
    job,
    output,
    state,
)

JOB = "jaaaaaaaaaa"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def plain(*frames: bytes):  # type: ignore[no-untyped-def]  # noqa: ANN201
    def attach(_job: FakeJob, _request: Request) -> Iterator[bytes]:
        return iter((state("running"), *frames))

    return attach


def test_run_prints_each_stream_and_a_plain_end_is_silent(world: World) -> None:
    FakeJob(world, plain(output("stdout", 0, b"out\n"), output("stderr", 0, b"err\n"), ended(0)))
    assert world.run("run", "--", "true") == (0, "out\n", "err\n")


@pytest.mark.parametrize(
    ("last", "code", "said"),
    [
        (ended(7, "failed"), 7, ""),
        (ended(137, "failed", "out_of_time"), 137, f"muster: job {JOB} failed: out_of_time\n"),
        (ended(143, "cancelled", "cancelled"), 143, f"muster: job {JOB} was cancelled\n"),
        (ended(None, "cancelled"), 1, f"muster: job {JOB} was cancelled\n"),
        (ended(None, "failed", "node_lost"), 1, f"muster: job {JOB} failed: node_lost\n"),
        (ended(None, "rejected", "too large"), 1, f"muster: job {JOB} was rejected: too large\n"),
    ],
)
def test_run_exits_with_the_jobs_code_and_reports_an_unusual_end(
    world: World, last: bytes, code: int, said: str
) -> None:
    FakeJob(world, plain(last))
    assert world.run("run", "false") == (code, "", said)


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (
            {"signal": 11, "reason": "signalled"},
            f"muster: job {JOB} was ended by SIGSEGV on node-1\n",
        ),
        (
            {"signal": 0, "reason": "exec_failed", "detail": "x was not found"},
            f"muster: job {JOB} failed on node-1: x was not found\n",
        ),
        ({"signal": 0, "reason": "exited", "detail": "the main process exited with 5"}, ""),
    ],
)
def test_run_prints_the_nodes_reason_for_a_failure(
    world: World, member: dict[str, object], said: str
) -> None:
    FakeJob(world, plain(ended(5, "failed", "failed")))
    world.routes[f"GET /v1/jobs/{JOB}"] = job(members=[{"node_id": "node-1", "rank": 0, **member}])
    assert world.run("run", "x") == (5, "", said)


def test_run_sends_its_flags_as_a_job(world: World) -> None:
    fake = FakeJob(world, plain(ended(0)))
    arguments = (
        "-g 2 -N 3 --fraction 0.5 -t 1h30m -J train -l team=nlp -e A=1 -e SHELL_X --retries 2 "
        "--no-requeue python -u t.py --gpus 9"
    )
    assert world.run("run", *arguments.split(), SHELL_X="mine")[0] == 0
    assert fake.submitted == {
        "command": ["python", "-u", "t.py", "--gpus", "9"],
        "gpus": 2,
        "nodes": 3,
        "fraction": 0.5,
        "time_limit_s": 5400,
        "name": "train",
        "labels": {"team": "nlp"},
        "env": {"A": "1", "SHELL_X": "mine"},
        "secrets": {},
        "retries": 2,
        "requeue": False,
        "stdin": False,
        "user": "ada",
        "workdir": str(world.home),
    }


def test_a_flag_with_value_zero_is_sent(world: World) -> None:
    fake = FakeJob(world, plain(ended(0)))
    assert world.run("run", "-g", "0", "--priority", "0", "--retries", "0", "true")[0] == 0
    assert {name: fake.submitted.get(name) for name in ("gpus", "priority", "retries")} == {
        "gpus": 0,
        "priority": 0,
        "retries": 0,
    }


def test_a_dropped_connection_resumes_at_the_first_unseen_byte(world: World) -> None:
    connections: list[dict[str, str]] = []

    def attach(_job: FakeJob, request: Request) -> Iterator[bytes]:
        connections.append(request.query)
        if len(connections) == 1:
            yield (
                state("running")
                + output("stdout", 0, b"abc")
                + output("stderr", 0, b"x")
                + b'{"stre'
            )
            raise Break
        yield state("running") + output("stdout", 2, b"cdef\n") + ended(0)

    FakeJob(world, attach)
    assert world.run("run", "true") == (0, "abcdef\n", "x")
    assert [(c["stdout"], c["stderr"], c.get("attempt")) for c in connections] == [
        ("0", "0", None),
        ("3", "1", "1"),
    ]


def test_a_brief_absence_of_the_gateway_does_not_end_the_run(world: World) -> None:
    answers = iter(
        (Problem(503, "still reading the log"), iter((output("stdout", 0, b"ok\n"), ended(0))))
    )
    FakeJob(world, lambda job, request: next(answers))  # type: ignore[arg-type, return-value]
    assert world.run("run", "true") == (0, "ok\n", "")


def test_a_new_attempt_is_shown_from_its_beginning(world: World) -> None:
    two = (state("running", 2), output("stdout", 0, b"two\n", 2), ended(0, attempt=2))
    FakeJob(world, plain(output("stdout", 0, b"one\n"), *two))
    assert world.run("run", "true") == (
        0,
        "one\ntwo\n",
        f"muster: job {JOB} was restarted: attempt 2\n",
    )


def test_a_reconnection_never_mixes_the_offsets_of_two_attempts(world: World) -> None:
    connections: list[dict[str, str]] = []

    def attach(_job: FakeJob, request: Request) -> Iterator[bytes]:
        connections.append(request.query)
        if len(connections) == 1:
            yield state("running") + output("stdout", 0, b"abc")
            raise Break
        if len(connections) == 2:
            yield output("stdout", 3, b"d\n") + output("stdout", 0, b"abc", 2)
            raise Break
        yield (
            state("running", 1)
            + output("stdout", 0, b"abcd\n", 1)
            + output("stdout", 3, b"e\n", 2)
            + ended(0, attempt=2)
        )

    FakeJob(world, attach)
    assert world.run("run", "true") == (
        0,
        "abcd\nabce\n",
        f"muster: job {JOB} was restarted: attempt 2\n",
    )
    assert [(c["stdout"], c.get("attempt")) for c in connections] == [
        ("0", None),
        ("3", "1"),
        ("3", "2"),
    ]


def test_a_long_wait_is_explained_once_in_one_line(world: World) -> None:
    def attach(_job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("queued")
        time.sleep(1.5)
        yield state("running") + ended(0)

    FakeJob(world, attach)
    assert world.run("run", "true") == (
        0,
        "",
        f"muster: job {JOB} waits: it needs 1 node with 2 GPUs, and not enough is free now\n",
    )


def test_a_job_that_never_fits_is_told_apart_with_what_to_do(world: World) -> None:
    def attach(_job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("queued")
        time.sleep(1.5)
        yield state("running") + ended(0)

    FakeJob(world, attach)
    answer = "this cluster could never hold it: 1 node with 64 GPUs"
    world.routes[f"GET /v1/jobs/{JOB}/why"] = {"state": "queued", "answer": answer}
    assert world.run("run", "true") == (
        0,
        "",
        f"muster: job {JOB} waits: {answer}\n"
        f"muster: Ctrl-C gives up; muster why {JOB} shows what would help; "
        "--reject-if-impossible refuses such a job at once\n",
    )


def test_a_refused_job_is_one_line_and_exit_code_1(world: World) -> None:
    world.routes["POST /v1/jobs"] = Problem(422, "gpus: 99 is out of bounds: give 1 to 64")
    assert world.run("run", "-g", "99", "true") == (
        1,
        "",
        "muster: gpus: 99 is out of bounds: give 1 to 64\n",
    )
