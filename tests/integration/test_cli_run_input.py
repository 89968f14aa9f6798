"""`muster run` forwards its standard input to the job."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_world import (
    PATIENCE_S,
    FakeJob,
    Problem,
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


def plain(*frames: bytes):  # type: ignore[no-untyped-def]  # noqa: ANN201
    def attach(_job: FakeJob, _request: Request) -> Iterator[bytes]:
        return iter((state("running"), *frames))

    return attach


def test_the_whole_input_is_forwarded(world: World) -> None:
    def attach(job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running")
        assert job.input_ended.wait(PATIENCE_S)
        yield output("stdout", 0, b"%d\n" % len(job.input))
        yield ended(0)

    fake = FakeJob(world, attach, takes_bytes=30_000)
    data = os.urandom(200_000)
    assert world.run("run", "wc", "-c", stdin=data) == (0, "200000\n", "")
    assert fake.input == data and fake.submitted["stdin"] is True


def test_an_empty_input_sends_an_end_of_input(world: World) -> None:
    def attach(job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running")
        assert job.input_ended.wait(PATIENCE_S)
        yield ended(0)

    FakeJob(world, attach)
    assert world.run("run", "cat", stdin=b"")[0] == 0


def test_an_end_of_input_that_came_too_early_is_sent_again(world: World) -> None:
    def attach(job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running")
        assert job.input_ended.wait(PATIENCE_S)
        yield ended(0)

    fake = FakeJob(world, attach)
    taken, early = fake._stdin, iter((Problem(425, "not yet"), {"next_offset": 0}))
    world.routes[f"PUT /v1/jobs/{JOB}/stdin"] = lambda request: next(early, None) or taken(request)
    assert world.run("run", "cat", stdin=b"")[0] == 0


def test_an_accepted_end_of_input_is_sent_once(world: World) -> None:
    def attach(job: FakeJob, _request: Request) -> Iterator[bytes]:
        yield state("running")
        assert job.input_ended.wait(PATIENCE_S)
        time.sleep(1.0)
        yield state("running") + ended(0)

    FakeJob(world, attach)
    assert world.run("run", "cat", stdin=b"abc") == (0, "", "")
    assert len(world.asked("PUT", f"/v1/jobs/{JOB}/stdin")) == 2


@pytest.mark.parametrize("size", [100, 200_000])
def test_a_new_attempt_gets_the_input_from_its_beginning(world: World, size: int) -> None:
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


def test_input_too_long_to_keep_for_a_new_attempt_is_reported(world: World) -> None:
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


def test_no_input_is_forwarded_without_one_or_with_no_stdin(world: World) -> None:
    fake = FakeJob(world, plain(ended(0)))
    assert world.run("run", "--no-stdin", "cat", stdin=b"x")[0] == 0
    assert fake.submitted["stdin"] is False and fake.input == b""
