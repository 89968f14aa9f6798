"""`muster run` turns signals into requests to stop, kill or leave the job."""

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
    Request,
    World,
    ended,
    output,
    state,
)

JOB = "jaaaaaaaaaa"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


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


def test_the_first_ctrl_c_stops_the_job_and_waits_for_its_end(world: World) -> None:
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


def test_a_second_ctrl_c_kills_the_job(world: World) -> None:
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


def test_a_third_ctrl_c_leaves_the_job(world: World) -> None:
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


def test_a_closed_pipe_stops_the_job_with_sigpipe(world: World) -> None:
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_if_the_gateway_is_gone(
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
