"""Requests over a connection of their own, and what the command repeats: real sockets, a gateway
that the test plays.
"""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libs.cli import gateway
from libs.cli.faults import Cut, Declined, Unreachable
from libs.client import one_shot
from libs.client.calls import reading
from libs.client.errors import ApiError, NotFound, RateLimited, Unavailable
from libs.client.profile import Profile
from libs.common.errors import Refused
from tests.integration.cli_world import Break, Problem, Request, World, job
from tests.integration.test_client_http import Replies

JOB = "/v1/jobs/jaaaaaaaaaa"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def profile(world: World, **changes: str) -> Profile:
    found = Profile(url=world.url, key="k", source="a test", user="ada", state="")
    return found._replace(**changes)


def test_a_call_is_sent_with_its_query_and_key(world: World) -> None:
    world.routes["GET /v1/jobs"] = {"jobs": [], "next": None, "seq": 1}
    call = reading("/v1/jobs", {"all": True, "label": ["a=b", "c"]})
    assert json.loads(one_shot.send(profile(world), call))["seq"] == 1
    (seen,) = world.seen
    assert (seen.query, seen.user_key) == ({"all": "true", "label": "a=b,c"}, "k")


def test_refusals_are_the_clients_errors(world: World) -> None:
    world.routes["GET " + JOB] = Replies(
        Problem(404, "no such job"), Problem(429, "slow down", {"retry_after_s": 3})
    )
    with pytest.raises(NotFound, match="no such job"):
        one_shot.send(profile(world), reading(JOB))
    with pytest.raises(RateLimited) as caught:
        one_shot.send(profile(world), reading(JOB))
    assert caught.value.retry_after_s == 3


def test_an_address_that_is_none_is_refused(world: World) -> None:
    for url, said in (("nonsense", "must look like"), ("http://host:port", "is not a URL")):
        with pytest.raises(Refused, match=said):
            one_shot.send(profile(world, url=url), reading(JOB))


def test_a_read_is_repeated_after_an_answer_that_passes(world: World) -> None:
    for fault in (Problem(503, "the log does not answer"), Problem(429, "slow down")):
        world.routes["GET " + JOB] = Replies(fault, job())
        assert gateway.ask(profile(world), "GET", JOB)["id"] == "jaaaaaaaaaa"


def test_a_read_is_repeated_after_a_broken_answer(world: World) -> None:
    def broken(_: Request) -> Iterator[bytes]:
        yield b'{"id'
        raise Break

    world.routes["GET " + JOB] = Replies(broken, job())
    assert gateway.ask(profile(world), "GET", JOB)["id"] == "jaaaaaaaaaa"


def test_a_change_is_repeated_only_if_nothing_was_done(world: World) -> None:
    world.routes["POST /v1/jobs"] = Problem(503, "the log does not answer")
    with pytest.raises(Declined, match="the log does not answer"):
        gateway.ask(profile(world), "POST", "/v1/jobs", body={})
    assert len(world.seen) == 1
    world.routes["POST /v1/jobs"] = Replies(Problem(429, "slow down"), job(state="pending"))
    assert gateway.ask(profile(world), "POST", "/v1/jobs", body={})["state"] == "pending"


def test_a_longer_pause_than_a_person_waits_for_is_raised(world: World) -> None:
    world.routes["GET " + JOB] = Problem(429, "slow down", {"retry_after_s": 60})
    began = time.monotonic()
    with pytest.raises(Declined) as caught:
        gateway.ask(profile(world), "GET", JOB)
    assert caught.value.status == 429 and time.monotonic() - began < gateway.REPEAT_S
    assert len(world.seen) == 1


def test_nothing_is_repeated_if_no_gateway_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    nobody = Profile(f"http://127.0.0.1:{port}", "k", "a test", "ada", "")
    with pytest.raises(Unreachable, match=r"no gateway answers at .* check the address"):
        gateway.ask(nobody, "GET", JOB)


def test_the_errors_of_the_command_are_errors_of_the_client() -> None:
    for error in (Unreachable("x"), Cut("x"), Declined("x", 409)):
        assert isinstance(error, ApiError)
    assert not Unreachable("x").sent and Cut("x").sent
    assert isinstance(Cut("x"), Unavailable) and not isinstance(Declined("x", 503), Unavailable)


def test_a_file_is_sent_again_from_its_beginning(world: World, tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_bytes(b"content")
    shown = {"sha256": "a", "size_bytes": 7}
    world.routes["PUT /v1/uploads/a"] = Replies(Problem(429, "slow down"), shown)
    with path.open("rb") as file:
        gateway.send(profile(world), "PUT", "/v1/uploads/a", payload=file)
    assert [request.body for request in world.seen] == [b"content", b"content"]


def test_a_stream_gives_pieces_and_lines_until_it_breaks(world: World) -> None:
    def lines(_: Request) -> Iterator[bytes]:
        yield b'{"a":'
        yield b"1}\n\n{}"

    def broken(_: Request) -> Iterator[bytes]:
        yield b"one\ntw"
        raise Break

    world.routes["GET /v1/events"] = Replies(lines, broken, Problem(403, "not yours"))
    found: list[Any] = []
    with gateway.opened(profile(world), "/v1/events") as stream:
        found = list(stream.lines())
    assert found == [b'{"a":1}', b"{}"]
    with (
        pytest.raises(Cut, match=r"the connection to .*/v1/events broke"),
        gateway.opened(profile(world), "/v1/events") as stream,
    ):
        for line in stream.lines():
            found.append(line)
    assert found[-1] == b"one"
    with (
        pytest.raises(Declined, match="not yours"),
        gateway.opened(profile(world), "/v1/events"),
    ):
        pass


def test_a_silent_stream_ends_after_its_bound() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(65_536)
                accepted.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                done.wait(10.0)

        done = threading.Event()
        threading.Thread(target=serve, daemon=True).start()
        given = Profile(url, "", "a test", "", "")
        with (
            pytest.raises(Cut, match="broke"),
            gateway.opened(given, "/v1/watch", silence_s=0.2) as stream,
        ):
            list(stream.pieces())
        done.set()
