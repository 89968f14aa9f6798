"""`muster run` as a child process: output, input, exit codes, signals, dropped connections."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_world import (
    PATIENCE_S,
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


def test_each_stream_goes_to_its_own_and_a_plain_end_is_silent(world: World) -> None:
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
def test_the_exit_code_is_the_jobs_and_an_odd_end_is_said(
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
def test_what_its_node_knows_about_a_failure_is_said(
    world: World, member: dict[str, object], said: str
) -> None:
    FakeJob(world, plain(ended(5, "failed", "failed")))
    world.routes[f"GET /v1/jobs/{JOB}"] = job(members=[{"node_id": "node-1", "rank": 0, **member}])
    assert world.run("run", "x") == (5, "", said)


def test_the_job_is_what_the_flags_say(world: World) -> None:
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


def test_a_zero_is_a_value_and_goes_out(world: World) -> None:
    fake = FakeJob(world, plain(ended(0)))
    assert world.run("run", "-g", "0", "--priority", "0", "--retries", "0", "true")[0] == 0
    assert {name: fake.submitted.get(name) for name in ("gpus", "priority", "retries")} == {
        "gpus": 0,
        "priority": 0,
        "retries": 0,
    }


def test_input_is_forwarded_whole_to_its_end(world: World) -> None:
    def attach(job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running")
        assert job.input_ended.wait(PATIENCE_S)
        yield output("stdout", 0, b"%d\n" % len(job.input))
        yield ended(0)

    fake = FakeJob(world, attach, takes_bytes=30_000)
    data = os.urandom(200_000)
    assert world.run("run", "wc", "-c", stdin=data) == (0, "200000\n", "")
    assert fake.input == data and fake.submitted["stdin"] is True


def test_an_empty_input_is_an_end_of_input(world: World) -> None:
    def attach(job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running")
        assert job.input_ended.wait(PATIENCE_S)
        yield ended(0)

    FakeJob(world, attach)
    assert world.run("run", "cat", stdin=b"")[0] == 0


def test_an_end_of_input_that_came_too_early_is_said_again(world: World) -> None:
    def attach(job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running")
        assert job.input_ended.wait(PATIENCE_S)
        yield ended(0)

    fake = FakeJob(world, attach)
    taken, early = fake._stdin, iter((Problem(425, "not yet"), {"next_offset": 0}))
    world.routes[f"PUT /v1/jobs/{JOB}/stdin"] = lambda request: next(early, None) or taken(request)
    assert world.run("run", "cat", stdin=b"")[0] == 0


def test_an_end_of_input_that_was_taken_is_said_once(world: World) -> None:
    def attach(job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running")
        assert job.input_ended.wait(PATIENCE_S)
        time.sleep(1.0)
        yield state("running") + ended(0)

    FakeJob(world, attach)
    assert world.run("run", "cat", stdin=b"abc") == (0, "", "")
    assert len(world.asked("PUT", f"/v1/jobs/{JOB}/stdin")) == 2


@pytest.mark.parametrize("size", [100, 200_000])
def test_a_new_attempt_is_given_the_input_from_its_beginning(world: World, size: int) -> None:
    data, first, second = os.urandom(size), threading.Event(), threading.Event()
    taken = bytearray()

    def attach(_job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running")
        assert first.wait(PATIENCE_S)
        yield state("queued", 2) + state("running", 2)
        assert second.wait(PATIENCE_S)
        yield ended(0, attempt=2)

    def stdin(request: Request) -> object:
        offset, attempt = int(request.query["offset"]), int(request.query["attempt"])
        if attempt == 1:
            first.set()
            return {
                "next_offset": offset + len(request.body),
                "attempt": 1,
                "closed": request.query["eof"] == "1",
            }
        taken[offset:] = request.body
        if request.query["eof"] == "1":
            second.set()
        return {"next_offset": len(taken), "attempt": 2, "closed": second.is_set()}

    FakeJob(world, attach)
    world.routes[f"PUT /v1/jobs/{JOB}/stdin"] = stdin
    assert world.run("run", "cat", stdin=data) == (
        0,
        "",
        f"muster: job {JOB} was restarted: attempt 2\n",
    )
    assert taken == data


def test_input_that_is_too_much_to_keep_for_a_new_attempt_is_said_to_be_gone(world: World) -> None:
    first = threading.Event()

    def attach(_job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running")
        assert first.wait(PATIENCE_S)
        yield state("running", 2)
        time.sleep(1.0)
        yield ended(0, attempt=2)

    def stdin(request: Request) -> object:
        if request.query["eof"] == "1":
            first.set()
        return {
            "next_offset": int(request.query["offset"]) + len(request.body),
            "attempt": 1,
            "closed": first.is_set(),
        }

    FakeJob(world, attach)
    world.routes[f"PUT /v1/jobs/{JOB}/stdin"] = stdin
    code, _, said = world.run("run", "cat", stdin=b"x" * (5 << 20))
    assert code == 0 and "needs its input from the beginning, which is not kept" in said


def test_input_is_not_asked_for_without_one_or_when_not_wanted(world: World) -> None:
    fake = FakeJob(world, plain(ended(0)))
    assert world.run("run", "--no-stdin", "cat", stdin=b"x")[0] == 0
    assert fake.submitted["stdin"] is False and fake.input == b""


def test_a_dropped_connection_is_taken_up_at_the_first_byte_not_seen(world: World) -> None:
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


def test_a_gateway_that_is_away_for_a_moment_does_not_end_the_run(world: World) -> None:
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


def interrupted(world: World, fake: FakeJob, *signals: int) -> tuple[int, str]:
    process = world.start("run", "sleep", "100")
    heard = (fake.stopped, fake.killed)
    _await_output(process)
    for number, event in zip(signals, heard, strict=False):
        process.send_signal(number)
        assert event.wait(PATIENCE_S)
    _, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, err.decode()


def _await_output(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdout is not None
    assert process.stdout.read(1) == b"."


def test_ctrl_c_asks_the_job_to_stop_and_waits_for_its_end(world: World) -> None:
    def attach(job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running") + output("stdout", 0, b".")
        assert job.stopped.wait(PATIENCE_S)
        time.sleep(0.1)
        yield ended(130, "cancelled", "")

    fake = FakeJob(world, attach)
    assert interrupted(world, fake, signal.SIGINT) == (
        130,
        (
            f"muster: asked job {JOB} to stop (SIGINT); press Ctrl-C again to kill "
            f"it\nmuster: job {JOB} "
            "was cancelled\n"
        ),
    )
    assert fake.stops == [{"signal": 2, "user": "ada"}]


def test_a_second_ctrl_c_kills_it(world: World) -> None:
    def attach(job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running") + output("stdout", 0, b".")
        assert job.killed.wait(PATIENCE_S)
        time.sleep(0.1)
        yield ended(137, "cancelled", "")

    fake = FakeJob(world, attach)
    code, said = interrupted(world, fake, signal.SIGINT, signal.SIGINT)
    assert (code, said.splitlines()[1]) == (
        137,
        f"muster: killing job {JOB}; press Ctrl-C again to leave without waiting for it",
    )


def test_a_third_ctrl_c_leaves(world: World) -> None:
    release = threading.Event()

    def attach(_job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running") + output("stdout", 0, b".")
        release.wait(PATIENCE_S)

    fake = FakeJob(world, attach)
    process = world.start("run", "sleep", "100")
    _await_output(process)
    for event in (fake.stopped, fake.killed):
        process.send_signal(signal.SIGINT)
        assert event.wait(PATIENCE_S)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    release.set()
    assert process.returncode == 130
    assert f"muster: left job {JOB}; it may still run\n" in err.decode()


def test_a_closed_pipe_stops_the_job_as_a_pipe_would(world: World) -> None:
    def attach(job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running") + output("stdout", 0, b".")
        offset = 1
        while not job.stopped.wait(0.05):
            yield output("stdout", offset, b"y\n" * 1000)
            offset += 2000
        yield ended(141, "cancelled")

    fake = FakeJob(world, attach)
    process = world.start("run", "yes")
    _await_output(process)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 141
    assert [stop["signal"] for stop in fake.stops] == [signal.SIGPIPE]
    assert process.stderr is not None and b"Traceback" not in process.stderr.read()


def test_a_noticeable_wait_is_explained_once_in_one_line(world: World) -> None:
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


def test_a_refused_job_is_one_line_and_exit_code_1(world: World) -> None:
    world.routes["POST /v1/jobs"] = Problem(422, "gpus: 99 is out of bounds: give 1 to 64")
    assert world.run("run", "-g", "99", "true") == (
        1,
        "",
        "muster: gpus: 99 is out of bounds: give 1 to 64\n",
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_although_the_gateway_is_gone(
    world: World, number: signal.Signals
) -> None:
    gone = threading.Event()

    def attach(_job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running")
        yield output("stdout", 0, b"here\n")
        gone.wait(PATIENCE_S)
        raise Break

    FakeJob(world, attach)
    process = world.start("run", "--", "sleep", "9")
    assert process.stdout is not None and process.stdout.readline() == b"here\n"
    world.server.shutdown()
    world.server.socket.close()
    gone.set()
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert f"muster: left job {JOB}; it may still run: no gateway answers at" in err.decode()
