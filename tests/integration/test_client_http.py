"""The client over real sockets, with a gateway that the test plays: limits, lost answers, broken
streams.
"""

import json
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libs.client.asynchronous.client import AsyncClient
from libs.client.errors import (
    ApiError,
    Conflict,
    Forbidden,
    FunctionFailed,
    InvalidRequest,
    NotFound,
    RateLimited,
    TimedOut,
    Unauthorized,
    Unavailable,
)
from libs.client.synchronous.client import Client
from libs.client.synchronous.functions import Future
from libs.client.synchronous.job import Job
from libs.common.model import BATCH_JOBS_MAX
from libs.embedded import certificates
from tests.integration import cli_world
from tests.integration.cli_world import Break, Problem, Request, World, ended, line, output, state


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    with Client(profile=world.home / "profile.json", retry_s=2.0) as made:
        yield made


class Replies:
    """Answers a route with these, one after the other; the last one for ever."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def __call__(self, request: Request) -> Any:
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return found(request) if callable(found) else found


def test_a_submission_is_repeated_with_the_same_key_until_it_is_answered(
    world: World, client: Client
) -> None:
    world.routes["POST /v1/jobs"] = Replies(
        Problem(503, "the log does not answer"), cli_world.job(state="pending")
    )
    job = client.jobs.submit(["true"], gpus=1)
    assert job.state == "pending"
    first, second = world.asked("POST", "/v1/jobs")
    assert first.body == second.body
    assert first.json == {"command": ["true"], "gpus": 1, "user": first.json["user"]}


def test_a_limit_is_waited_for_and_then_raised_with_its_pause(world: World, client: Client) -> None:
    limited = Problem(429, "too many requests", {"retry_after_s": 1})
    world.routes["GET /v1/jobs/j1"] = Replies(limited, cli_world.job("j1"))
    assert client.jobs.get("j1").id == "j1"
    world.routes["GET /v1/jobs/j1"] = Problem(429, "too many requests", {"retry_after_s": 9})
    with pytest.raises(RateLimited) as found:
        client.jobs.get("j1")
    assert found.value.retry_after_s == 9


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Unauthorized), (404, NotFound), (409, Conflict), (422, InvalidRequest)],
)
def test_a_refusal_is_raised_at_once(
    world: World, client: Client, status: int, kind: type[Exception]
) -> None:
    world.routes["GET /v1/jobs/j1"] = Problem(status, "gpus: 99 is out of bounds")
    with pytest.raises(kind, match="99 is out of bounds"):
        client.jobs.get("j1")
    assert len(world.asked("GET", "/v1/jobs/j1")) == 1


def test_jobs_of_the_first_requests_are_returned_when_a_later_one_fails(
    world: World, client: Client
) -> None:
    first = {"jobs": [{"status": 201, "job": {"id": f"j{n}"}} for n in range(BATCH_JOBS_MAX)]}
    path = "/v1/jobs:batch"
    world.routes[f"POST {path}"] = Replies(first, Problem(403, "the key was revoked"))
    jobs = [{"command": "true"}] * (2 * BATCH_JOBS_MAX + 1)
    found = client.jobs.submit_all(jobs)
    assert len(world.asked("POST", path)) == 2
    assert [each.id for each in found if isinstance(each, Job)] == [
        f"j{n}" for n in range(BATCH_JOBS_MAX)
    ]
    errors = [each for each in found if isinstance(each, ApiError)]
    assert len(errors) == BATCH_JOBS_MAX + 1 and isinstance(errors[-1], Forbidden)
    with pytest.raises(Forbidden):
        client.jobs.submit_all(jobs)


def test_a_gateway_that_does_not_answer_is_named(world: World) -> None:
    with (
        Client("http://127.0.0.1:9", key="k", retry_s=0.3) as client,
        pytest.raises(Unavailable, match=r"http://127.0.0.1:9 \(from the argument url\)") as found,
    ):
        client.jobs.submit("true")
    assert not found.value.sent


def test_an_answer_that_takes_too_long_is_unavailable(world: World) -> None:
    def slow(_: Request) -> Iterator[bytes]:
        time.sleep(1.0)
        yield b"{}"

    world.routes["GET /v1/jobs/j1"] = slow
    with (
        Client(world.url, key="k", timeout_s=0.2, retry_s=0.0) as client,
        pytest.raises(Unavailable, match="did not answer GET /v1/jobs/j1"),
    ):
        client.jobs.get("j1")


@pytest.mark.parametrize("url", ["nonsense", "ftp://host", "http://", "http://host:port"])
def test_an_address_that_is_none_is_refused_by_its_field(url: str) -> None:
    with pytest.raises(InvalidRequest) as found:
        Client(url, key="k")
    assert found.value.field == "url"


def test_a_damaged_profile_is_refused(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text("[]")
    with pytest.raises(InvalidRequest) as found:
        Client(profile=tmp_path / "profile.json")
    assert found.value.field == "profile"


def test_the_key_of_the_profile_is_not_sent_to_another_address(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_PROFILE", str(world.home / "profile.json"))
    monkeypatch.delenv("MUSTER_API_KEY", raising=False)
    world.routes["GET /v1/jobs/j1"] = cli_world.job("j1")
    with Client() as client:
        client.jobs.get("j1")
    world.profile({"gateway": "http://other.example", "key": "k-other"})
    with Client(world.url) as client:
        client.jobs.get("j1")
    assert [request.user_key for request in world.seen] == [cli_world.KEY, ""]


def test_lists_are_read_page_after_page_up_to_the_limit(world: World, client: Client) -> None:
    def page(request: Request) -> object:
        after = int(request.query.get("after", "0"))
        rows = [cli_world.job(f"j{after + number}") for number in (1, 2)]
        return {"jobs": rows, "next": after + 2 if after < 4 else None, "seq": 9}

    world.routes["GET /v1/jobs"] = page
    assert [job.id for job in client.jobs.list(all=True)] == [f"j{n}" for n in range(1, 7)]
    assert [job.id for job in client.jobs.list(limit=3)] == ["j1", "j2", "j3"]
    assert world.seen[0].query["all"] == "true"


def test_a_wait_outlives_a_gateway_that_is_away(world: World, client: Client) -> None:
    world.routes["GET /v1/jobs/j1"] = cli_world.job("j1", state="running")
    world.routes["GET /v1/jobs/j1/wait"] = Replies(
        Problem(507, "away"), cli_world.job("j1", state="completed")
    )
    seen: list[str] = []
    done = client.jobs.wait("j1", on_change=lambda job: seen.append(job.state))
    assert (done.state, seen) == ("completed", ["running", "completed"])


def test_a_wait_ends_after_its_timeout(world: World, client: Client) -> None:
    world.routes["GET /v1/jobs/j1"] = cli_world.job("j1")
    world.routes["GET /v1/jobs/j1/wait"] = cli_world.job("j1")
    with pytest.raises(TimedOut, match="still running"):
        client.jobs.wait("j1", timeout_s=0.1)


def test_output_is_followed_over_broken_connections_and_attempts(
    world: World, client: Client
) -> None:
    def attach(request: Request) -> Iterator[bytes]:
        tried = len(world.asked("GET", "/v1/jobs/j1/attach"))
        if tried == 1:
            yield state("running")
            yield output("stdout", 0, b"one\ntw")
            raise Break
        assert request.query["attempt"] == "1"
        if tried == 2:
            assert request.query["stdout"] == "6"
            yield output("stdout", 4, b"two\n")
            raise Break
        yield output("stdout", 8, b"cut off")
        yield state("running", attempt=2)
        yield output("stdout", 0, b"zero\n", attempt=2)
        yield output("stderr", 0, b"caution", attempt=2)
        yield output("stdout", 9, b"late", attempt=1)
        yield ended(0, attempt=2)

    world.routes["GET /v1/jobs/j1/attach"] = attach
    assert list(client.jobs.logs("j1", follow=True)) == [
        *("one", "two", "cut off", "zero", "caution")
    ]


def test_one_stream_can_be_followed_alone(world: World, client: Client) -> None:
    world.routes["GET /v1/jobs/j1/attach"] = lambda _: iter(
        [output("stdout", 0, b"a\n"), output("stderr", 0, b"b\n"), ended(0)]
    )
    assert list(client.jobs.logs("j1", follow=True, stream="stderr")) == ["b"]


def event(seq: int, kind: str) -> bytes:
    return line({"seq": seq, "at": None, "writer": "w", "epoch": 1, "kind": kind, "summary": ""})


def test_facts_are_followed_over_a_break_in_the_middle_of_a_commit(
    world: World, client: Client
) -> None:
    def served(request: Request) -> Iterator[bytes]:
        if request.query["after"] == "3":
            yield b"\n" + event(4, "job.submitted") + event(5, "job.queued")
            raise Break
        assert request.query["after"] == "4"
        yield event(5, "job.queued") + event(5, "job.placed") + event(6, "job.closed")

    world.routes["GET /v1/events"] = served
    found = [each.kind for each in client.jobs.events("j1", follow=True, after=3)]
    assert found == ["job.submitted", "job.queued", "job.placed", "job.closed"]


def test_chosen_facts_of_a_job_are_followed_to_its_end(world: World, client: Client) -> None:
    def served(request: Request) -> Iterator[bytes]:
        kinds = tuple(request.query["kind"].split(","))
        for seq, kind in enumerate(("job.queued", "gpu.faulted", "job.closed"), 4):
            if kind.startswith(kinds):
                yield event(seq, kind)
        raise Break

    world.routes["GET /v1/events"] = served
    found = client.jobs.events("j1", follow=True, after=3, kind="gpu.")
    assert [each.kind for each in found] == ["gpu.faulted"]
    found = client.jobs.events("j1", follow=True, after=3, kind="job.closed,gpu.")
    assert [each.kind for each in found] == ["gpu.faulted", "job.closed"]


def test_a_lock_whose_answer_was_lost_is_asked_for_again_by_the_same_holder(
    world: World, client: Client
) -> None:
    lost = Problem(503, "the log did not confirm it")
    granted = {"lock": "deploy", "state": "held", "token": 7, "ttl_s": 30}
    world.routes["POST /v1/locks/deploy/acquire"] = Replies(lost, granted)
    assert client.locks.acquire("deploy").token == 7
    first, second = world.asked("POST", "/v1/locks/deploy/acquire")
    assert first.body == second.body and first.json["holder"]


def test_a_stream_that_is_refused_is_raised(world: World, client: Client) -> None:
    world.routes["GET /v1/jobs/j1/output"] = Problem(410, "the stdout of job j1 is gone")
    with pytest.raises(NotFound, match="is gone"):
        list(client.jobs.logs("j1"))


async def test_the_asynchronous_client_does_the_same(world: World) -> None:
    world.routes["GET /v1/jobs/j1"] = cli_world.job("j1")
    world.routes["GET /v1/jobs/j1/attach"] = lambda _: iter([output("stdout", 0, b"a\n"), ended(0)])
    async with AsyncClient(profile=world.home / "profile.json") as client:
        job = await client.jobs.get("j1")
        assert [each async for each in job.logs(follow=True)] == ["a"]
        assert repr(job).startswith("<Job j1 train: running on node-1")


def test_an_answer_of_something_else_is_no_gateway(world: World, client: Client) -> None:
    world.routes["GET /v1/whoami"] = lambda _: iter([b"<html>"])
    with pytest.raises(Exception, match="check that the address is a Muster gateway"):
        client.whoami()


def test_the_body_of_a_change_is_json(world: World, client: Client) -> None:
    world.routes["POST /v1/jobs/j1/cancel"] = cli_world.job("j1")
    client.jobs.cancel("j1", grace_s=2)
    (asked,) = world.asked("POST", "/v1/jobs/j1/cancel")
    assert json.loads(asked.body)["grace_s"] == 2


def test_over_https_the_certificate_is_checked_against_the_trusted_ones(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates.authority(tmp_path, "users")
    certificates.server(tmp_path, "shown", "users", ["localhost"])
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(
        certificates.certificate_file(tmp_path, "shown"), certificates.key_file(tmp_path, "shown")
    )
    world.server.socket = context.wrap_socket(world.server.socket, server_side=True)
    world.routes["GET /v1/jobs/j1"] = cli_world.job("j1")
    url = f"https://localhost:{world.server.server_port}"
    with (
        Client(url, key="k", retry_s=0.0) as client,
        pytest.raises(Unavailable, match="certificate verify failed"),
    ):
        client.jobs.get("j1")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "users.pem"))
    with Client(url, key="k") as client:
        assert client.jobs.get("j1").id == "j1"


def test_a_wait_ends_in_time_also_if_the_gateway_asks_for_a_longer_pause(
    world: World, client: Client
) -> None:
    world.routes["GET /v1/jobs/j1"] = cli_world.job("j1", state="running")
    limited = Problem(429, "too many requests", {"retry_after_s": 3_600})
    world.routes["GET /v1/jobs/j1/wait"] = limited
    with pytest.raises(TimedOut):
        client.jobs.wait("j1", timeout_s=0.2)


def test_an_element_that_ended_between_two_looks_has_its_result(
    world: World, client: Client
) -> None:
    element = cli_world.job("j1_0", state="failed")
    world.routes["GET /v1/jobs/j1_0"] = Replies(Problem(404, "no such job"), element)
    world.routes["GET /v1/jobs/j1"] = cli_world.job("j1", state="completed")
    world.routes["GET /v1/jobs/j1_0/files"] = Problem(404, "no such file")
    with pytest.raises(FunctionFailed, match="the job is failed"):
        Future(client.jobs, "j1_0", "j1").result(timeout_s=60)
