"""The client against a whole embedded cluster: jobs, gangs, arrays, output, facts, files."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
import pytest_asyncio

from libs.client.asynchronous.client import AsyncClient
from libs.client.errors import (
    ApiError,
    Conflict,
    Forbidden,
    InvalidRequest,
    JobFailed,
    NotFound,
    TimedOut,
    Unauthorized,
)
from libs.client.synchronous.client import Client
from tests.integration.client_world import ClientWorld, client_world

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

WAIT_S = 60.0
SUBMITS = 1_000


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClientWorld]:
    async with client_world(tmp_path_factory.mktemp("client")) as made:
        yield made


async def test_a_job_is_submitted_waited_for_and_read(world: ClientWorld) -> None:
    job = world.client.jobs.submit(
        ["sh", "-c", "echo out; echo err >&2; echo $GREETING"],
        gpus=1,
        name="hello",
        env={"GREETING": "hi"},
        labels={"team": "vision"},
        time_limit="5m",
    )
    seen: list[str] = []
    job.wait(timeout_s=WAIT_S, check=True, on_change=lambda each: seen.append(each.state))
    assert (job.state, job.exit_code, seen[-1]) == ("completed", 0, "completed")
    assert list(job.logs()) == ["out", "hi", "err"]
    assert list(job.logs(stream="stderr")) == ["err"]
    assert job.shown.gpus == 1 and job.labels == {"team": "vision"} and job.time_limit_s == 300
    assert "hello" in repr(job) and "<td>hello</td>" in job._repr_html_()
    (found,) = world.client.jobs.list(all=True, name="hello", label={"team": "vision"})
    assert found.id == job.id == world.client.jobs.get("hello").refresh().id


async def test_output_is_followed_until_the_job_ends(world: ClientWorld) -> None:
    job = world.client.jobs.submit(["sh", "-c", "for n in 1 2 3; do echo $n; sleep 0.2; done"])
    assert list(job.logs(follow=True)) == ["1", "2", "3"]
    assert job.wait(timeout_s=WAIT_S).state == "completed"


async def test_the_facts_of_a_job_are_followed_to_its_end(world: ClientWorld) -> None:
    job = world.client.jobs.submit("true")
    kinds = [event.kind for event in job.events(follow=True)]
    assert kinds[0] == "job.submitted" and kinds[-1] == "job.closed"
    recorded = [event.kind for event in job.events()]
    assert recorded[: len(kinds)] == kinds
    assert all(event.seq for event in world.client.jobs.events(kind="job.submitted"))


async def test_a_job_that_fails_says_how(world: ClientWorld) -> None:
    job = world.client.jobs.submit(["sh", "-c", "exit 7"])
    with pytest.raises(JobFailed) as found:
        job.wait(timeout_s=WAIT_S, check=True)
    assert (found.value.state, found.value.code) == ("failed", 7)


async def test_a_job_is_held_released_cancelled_and_then_has_ended(world: ClientWorld) -> None:
    job = world.client.jobs.submit(["sleep", "1000"], hold=True)
    assert job.refresh().held
    assert not world.client.jobs.release(job.id).held
    with pytest.raises(TimedOut):
        job.wait(timeout_s=0.2)
    job.cancel(grace_s=0)
    assert job.wait(timeout_s=WAIT_S).state == "cancelled"
    with pytest.raises(Conflict):
        job.cancel()
    with pytest.raises(JobFailed):
        job.check()


async def test_jobs_of_a_batch_are_answered_each_by_itself(world: ClientWorld) -> None:
    jobs = [{"command": "true", "gpus": 0.5, "name": "one"}, {"command": "true", "gpu": 1}]
    first, refused = world.client.jobs.submit_all(jobs)
    assert not isinstance(first, ApiError) and first.wait(timeout_s=30).state == "completed"
    assert isinstance(refused, InvalidRequest) and "did you mean 'gpus'" in refused.detail
    with pytest.raises(InvalidRequest, match="no job of this batch"):
        await world.many.jobs.submit_all(jobs, all_or_nothing=True)


async def test_a_waiting_job_explains_itself(world: ClientWorld) -> None:
    job = world.client.jobs.submit("true", gpus=2, nodes=2, model="unknown-gpu")
    assert job.why().answer
    assert not world.client.jobs.whatif("true", gpus=2, model="unknown-gpu").would_start
    assert world.client.jobs.whatif("true", gpus=2).placement[0].gpus
    world.client.jobs.kill(job.id)


async def test_a_gang_has_output_of_each_rank(world: ClientWorld) -> None:
    job = world.client.jobs.submit(["sh", "-c", "echo rank $RANK"], nodes=3, gpus=1)
    job.wait(timeout_s=WAIT_S, check=True)
    assert [list(job.logs(rank=rank)) for rank in range(3)] == [[f"rank {n}"] for n in range(3)]


async def test_an_array_runs_all_its_elements_and_shows_its_progress(
    world: ClientWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    job = world.client.jobs.submit(
        ["sh", "-c", "echo $MUSTER_ARRAY_TASK_ID"], array="0-4%2", name="sweep"
    )
    job.wait(timeout_s=WAIT_S, check=True, progress=True)
    assert "0-4%2: 5 completed" in capsys.readouterr().err
    assert job.shown.array is not None and job.shown.array.states == {"completed": 5}
    assert list(world.client.jobs.logs("sweep_3")) == ["3"]


async def test_a_directory_goes_along_and_a_file_comes_back(
    world: ClientWorld, tmp_path: Path
) -> None:
    (tmp_path / "input").write_text("abc")
    command = ["sh", "-c", "rev < input > output"]
    job = world.client.jobs.submit(command, upload=tmp_path).wait(timeout_s=WAIT_S, check=True)
    assert job.file("output").strip() == b"cba"
    with pytest.raises(NotFound):
        job.file("absent")
    with pytest.raises(InvalidRequest, match="bytes_max"):
        job.file("output", bytes_max=1)
    again = world.client.jobs.submit(command, upload=job.shown.upload)
    assert again.wait(timeout_s=WAIT_S).state == "completed"
    assert job.shown.upload
    world.client.jobs.remove_upload(job.shown.upload)
    with pytest.raises(NotFound, match="upload"):
        world.client.jobs.remove_upload(job.shown.upload)


async def test_the_same_key_submits_once(world: ClientWorld) -> None:
    first = world.client.jobs.submit("true", idempotency_key="once-1")
    assert world.client.jobs.submit("true", idempotency_key="once-1").id == first.id
    with pytest.raises(Conflict):
        world.client.jobs.submit("false", idempotency_key="once-1")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"nodes": 0}, "nodes"),
        ({"gpus": 99_999}, "gpus"),
        ({"gpuz": 1}, "gpuz"),
        ({"time_limit": "soon"}, "time_limit"),
        ({"labels": {"a b": "c"}}, "labels"),
        ({"array": "9-0"}, "array"),
        ({"priority": "high"}, "priority"),
        ({"env": {"AWS_SECRET_ACCESS_KEY": "x" * 40}}, "env"),
        ({"upload": "0" * 64}, "upload"),
        ({"workdir": "here"}, "workdir"),
        ({"secrets": {"TOKEN": "absent"}}, "secrets"),
    ],
)
async def test_bad_input_is_refused_by_the_field(
    world: ClientWorld, fields: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidRequest) as found:
        world.client.jobs.submit("true", **fields)  # type: ignore[arg-type]
    assert found.value.field.partition(".")[0] == field, found.value
    if field not in ("upload", "secrets"):
        with pytest.raises(InvalidRequest):
            world.client.jobs.check("true", **fields)


async def test_a_check_records_nothing(world: ClientWorld) -> None:
    found = world.client.jobs.check("true", gpus=1, name="only-checked")
    assert found.dry_run and found.spec.gpus == 1
    assert list(world.client.jobs.list(all=True, name="only-checked")) == []


async def test_a_wrong_key_and_a_missing_job_have_their_errors(world: ClientWorld) -> None:
    with Client(world.client.url, key="wrong") as other, pytest.raises(Unauthorized):
        other.whoami()
    with pytest.raises(NotFound):
        world.client.jobs.get("absent")
    with pytest.raises(InvalidRequest) as found:
        list(world.client.jobs.list(state="asleep"))
    assert found.value.field == "state"


async def test_a_member_may_not_do_what_operators_do(world: ClientWorld) -> None:
    status, made = await world.cluster.try_once(
        "POST", "/v1/keys", json={"user": "ada", "tenant": "default", "role": "member"}
    )
    assert status == 201, made
    with Client(world.client.url, key=made["key"]) as member:
        assert member.whoami().role == "member"
        with pytest.raises(Forbidden):
            member.nodes.drain("node-1")


async def test_a_thousand_submits_at_once_are_each_one_job(world: ClientWorld) -> None:
    began = time.monotonic()
    jobs = await asyncio.gather(
        *(
            world.many.jobs.submit("true", name=f"many-{number}", hold=True, labels={"many": "1"})
            for number in range(SUBMITS)
        )
    )
    print(f"{SUBMITS} submits at once took {time.monotonic() - began:.1f} s")
    assert len({job.id for job in jobs}) == SUBMITS
    listed = [job.name async for job in world.many.jobs.list(label={"many": "1"})]
    assert sorted(listed) == sorted(f"many-{number}" for number in range(SUBMITS))
    await asyncio.gather(*(job.cancel() for job in jobs))


async def test_many_waits_do_not_delay_other_calls(world: ClientWorld) -> None:
    async with AsyncClient(profile=world.profile, calls_at_once=2) as client:
        jobs = await asyncio.gather(*(client.jobs.submit("true", hold=True) for _ in range(40)))
        waits = [asyncio.ensure_future(job.wait(timeout_s=WAIT_S)) for job in jobs]
        await asyncio.sleep(0.5)
        async with asyncio.timeout(WAIT_S / 4):  # shorter than the long polls
            await asyncio.gather(*(client.jobs.release(job.id) for job in jobs))
        assert {job.state for job in await asyncio.gather(*waits)} == {"completed"}


async def test_one_client_serves_many_threads(world: ClientWorld) -> None:
    def submit(number: int) -> str:
        return (
            world.client.jobs.submit("true", name=f"thread-{number}").wait(timeout_s=WAIT_S).state
        )

    with ThreadPoolExecutor(16) as threads:
        assert set(threads.map(submit, range(48))) == {"completed"}


async def test_a_killed_gateway_costs_no_line_no_fact_and_no_second_job(world: ClientWorld) -> None:
    job = await world.many.jobs.submit(
        ["sh", "-c", "for n in $(seq 60); do echo $n; sleep 0.1; done"]
    )
    lines = asyncio.ensure_future(collected(job.logs(follow=True)))
    facts = asyncio.ensure_future(collected(job.events(follow=True)))
    waited = asyncio.ensure_future(job.wait(timeout_s=WAIT_S))
    await asyncio.sleep(1.0)
    gateway = world.cluster.ticket("gateway")
    assert gateway is not None
    os.kill(gateway.pid, signal.SIGKILL)
    async with AsyncClient(profile=world.profile, retry_s=WAIT_S) as client:
        submitted = await asyncio.gather(
            *(client.jobs.submit("true", name=f"killed-{number}") for number in range(20))
        )
        assert len({each.id for each in submitted}) == 20
        listed = [each.name async for each in client.jobs.list(all=True, since="1h")]
    assert sum(name.startswith("killed-") for name in listed) == 20
    assert await lines == [str(number) for number in range(1, 61)]
    kinds = [fact.kind for fact in await facts]
    assert kinds == [event.kind async for event in job.events()][: len(kinds)]
    assert kinds[-1] == "job.closed" and (await waited).state == "completed"


T = TypeVar("T")


async def collected(values: AsyncIterator[T]) -> list[T]:
    return [value async for value in values]


async def test_the_cluster_says_who_asks_and_what_it_is(world: ClientWorld) -> None:
    assert world.client.whoami().role == "admin"
    assert (await world.many.version()).version == world.client.version().version
    assert world.client.cluster().nodes == {"healthy": 3}
    assert repr(world.client) == f"<Client of {world.client.url}>"
