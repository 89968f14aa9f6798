"""The gateway's routes on jobs, over real HTTP."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from yarl import URL

from libs.common import facts as f
from libs.common import subjects
from libs.common.model import ID_PATTERN, JobId
from libs.common.transport.log import AppendUnknown
from libs.common.transport.log_memory import MemoryLog
from tests.integration.gateway_world import KEY, World, gateway_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path) as made:
        await made.writers.begin_term()
        await made.writers.register("n1")
        await made.settle()
        yield made


async def test_a_submitted_job_is_recorded_and_visible_before_the_answer(world: World) -> None:
    job = await world.submit(
        name="train", user="ada", gpus=2, fraction=0.5, time_limit="1h30m", labels={"team": "a"}
    )
    last = await world.log.last(subjects.gateway("a"))
    assert last is not None
    recorded = f.decode(last.data).facts
    assert isinstance(recorded[0], f.JobSubmitted)
    assert (recorded[0].job_id, recorded[0].spec.gpu_share, recorded[0].spec.time_limit_s) == (
        job["id"],
        50,
        5400,
    )
    assert job == await world.ask("GET", f"/v1/jobs/{job['id']}")
    assert (job["state"], job["user"], job["seq"]) == ("pending", "ada", last.seq)


async def test_a_job_id_is_short_and_fits_in_a_subject(world: World) -> None:
    ids = {(await world.submit())["id"] for _ in range(20)}
    assert len(ids) == 20
    assert all(
        ID_PATTERN.fullmatch(job_id) and re.fullmatch(r"j[a-z2-7]{10}", job_id) for job_id in ids
    )


async def test_an_unknown_field_is_refused_with_what_may_have_been_meant(world: World) -> None:
    problem = await world.ask("POST", "/v1/jobs", 422, json={"command": ["true"], "gpuz": 2})
    assert problem["detail"] == "field 'gpuz' is not known: did you mean 'gpus'?"


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'"x"', b"\xff", b"[" * 5000, b"", b'{"command": "\\ud800"}']
)
async def test_a_body_that_is_no_request_is_never_a_fault_of_the_server(
    world: World, body: bytes
) -> None:
    async with world.session.post(world.url + "/v1/jobs", data=body) as response:
        assert response.status in (400, 422)
        assert response.content_type == "application/problem+json"


async def test_a_dry_run_records_nothing(world: World) -> None:
    before = await world.log.bounds()
    shown = await world.ask(
        "POST", "/v1/jobs?dry_run=true", 200, json={"command": ["true"], "env": {"MODE": "x"}}
    )
    assert await world.log.bounds() == before
    assert shown["spec"]["command"] == ["true"]
    assert shown["warnings"] == []


async def test_submissions_at_once_all_get_an_answer(world: World) -> None:
    jobs = await asyncio.gather(*(world.submit(env={"BIG": "x" * 60_000}) for _ in range(30)))
    assert len({job["id"] for job in jobs}) == 30


async def test_a_log_that_is_nearly_full_takes_no_more_jobs(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, filled=0.81) as full:
        problem = await full.ask("POST", "/v1/jobs", 507, json={"command": ["true"]})
        assert "81%" in problem["detail"]


async def test_a_list_shows_live_jobs_and_with_all_the_ended_too(world: World) -> None:
    done, live = await world.run_to("completed"), await world.run_to("queued")
    assert [job["id"] for job in (await world.ask("GET", "/v1/jobs"))["jobs"]] == [live]
    assert [job["id"] for job in (await world.ask("GET", "/v1/jobs?all=1"))["jobs"]] == [done, live]


async def test_a_list_is_filtered_by_state_label_user_and_time(world: World) -> None:
    first = await world.run_to("queued", user="ada", labels={"team": "a"})
    second = await world.run_to("queued", user="bob", labels={"team": "b"})
    for query, ids in {
        "state=queued,pending": [first, second],
        "label=team=a": [first],
        "label=team": [first, second],
        "user=bob": [second],
        "since=1h": [first, second],
        "since=2099-01-01T00:00:00Z": [],
        "state=running": [],
    }.items():
        assert [
            job["id"] for job in (await world.ask("GET", f"/v1/jobs?{query}"))["jobs"]
        ] == ids, query


async def test_pages_of_a_list_join_without_gap_or_repeat(world: World) -> None:
    made = [job["id"] for job in await asyncio.gather(*(world.submit() for _ in range(25)))]
    seen: list[str] = []
    after: int | None = 0
    while after is not None:
        page = await world.ask("GET", f"/v1/jobs?limit=4&after={after}")
        seen += [job["id"] for job in page["jobs"]]
        after = page["next"]
    assert sorted(seen) == sorted(made)


async def test_a_query_parameter_that_is_not_known_is_refused(world: World) -> None:
    problem = await world.ask("GET", "/v1/jobs?limt=3", 422)
    assert "did you mean 'limit'" in problem["detail"]
    await world.ask("GET", "/v1/jobs?limit=many", 422)
    await world.ask("GET", "/v1/jobs?state=lost", 422)


async def test_a_job_is_found_by_id_by_its_beginning_and_by_name(world: World) -> None:
    job_id = (await world.submit(name="train"))["id"]
    for ref in (job_id, job_id[:6], "train"):
        assert (await world.ask("GET", f"/v1/jobs/{ref}"))["id"] == job_id


async def test_a_name_means_the_latest_live_job_else_the_latest(world: World) -> None:
    live = await world.run_to("queued", name="train")
    ended = await world.run_to("completed", name="train")
    assert (await world.ask("GET", "/v1/jobs/train"))["id"] == live
    await world.writers.schedule(f.JobClosed(job_id=JobId(live), attempt=1, outcome="cancelled"))
    await world.settle()
    assert (await world.ask("GET", "/v1/jobs/train"))["id"] == ended


async def test_an_ambiguous_beginning_names_the_candidates(world: World) -> None:
    ids = sorted([(await world.submit())["id"] for _ in range(2)])
    assert (await world.ask("GET", "/v1/jobs/j", 409))["candidates"] == ids


async def test_an_unknown_job_is_not_found(world: World) -> None:
    assert "GET /v1/jobs?all=1" in (await world.ask("GET", "/v1/jobs/nothing", 404))["detail"]


async def test_the_history_of_a_job_holds_every_fact_about_it(world: World) -> None:
    await world.run_to("queued")
    job_id = await world.run_to("completed")
    told = await world.ask("GET", f"/v1/jobs/{job_id}/history")
    kinds = [row["kind"] for row in told["facts"]]
    assert kinds == [
        "job.submitted", "job.admitted", "job.queued", "job.placed", "job.started", "job.finished",
        "job.released", "job.closed",
    ]  # fmt: skip
    assert all(row["fact"].get("job_id", job_id) == job_id for row in told["facts"])
    assert told["facts"][3]["summary"] == "attempt 1 placed on n1 (1 GPU)"


async def test_a_late_fact_is_shown_in_the_history_although_it_changes_nothing(
    world: World,
) -> None:
    job_id = await world.run_to("completed")
    await world.writers.finish(job_id, "n1")
    await world.settle()
    told = await world.ask("GET", f"/v1/jobs/{job_id}/history")
    assert [row["kind"] for row in told["facts"]][-2:] == ["job.finished", "job.released"]
    assert (await world.ask("GET", f"/v1/jobs/{job_id}"))["state"] == "completed"


async def test_a_cancel_is_recorded_once_for_the_same_wish(world: World) -> None:
    job_id = await world.run_to("running")
    body = {"signal": "SIGINT", "grace_s": "1m", "user": "ada"}
    answer = await world.ask("POST", f"/v1/jobs/{job_id}/cancel", 202, json=body)
    end = await world.log.bounds()
    await world.ask("POST", f"/v1/jobs/{job_id}/cancel", 202, json=body)
    assert answer["cancel_requested"] and await world.log.bounds() == end
    entry = await world.log.get(end[1])
    assert entry is not None
    assert f.decode(entry.data).facts == (
        f.CancelRequested(job_id=JobId(job_id), signal=2, grace_s=60, user="ada"),
    )


async def test_a_kill_leaves_no_grace(world: World) -> None:
    job_id = await world.run_to("running")
    await world.ask("POST", f"/v1/jobs/{job_id}/kill", 202)
    assert (await world.said())[-1] == f.CancelRequested(
        job_id=JobId(job_id), signal=9, grace_s=0, user="tests"
    )


async def test_a_job_that_has_ended_is_not_cancelled(world: World) -> None:
    job_id = await world.run_to("completed")
    problem = await world.ask("POST", f"/v1/jobs/{job_id}/cancel", 409)
    assert problem["state"] == "completed"


async def test_a_wait_ends_with_the_job(world: World) -> None:
    job_id = await world.run_to("running")
    waiting = asyncio.create_task(world.ask("GET", f"/v1/jobs/{job_id}/wait?timeout_s=20"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await world.writers.finish(job_id, "n1", exit_code=3)
    await world.writers.close(job_id, "failed", 3)
    assert (await waiting)["exit_code"] == 3


async def test_a_wait_for_a_state_ends_when_it_is_left(world: World) -> None:
    job_id = await world.run_to("queued")
    waiting = asyncio.create_task(
        world.ask("GET", f"/v1/jobs/{job_id}/wait?timeout_s=20&state=queued")
    )
    await asyncio.sleep(0.02)
    await world.writers.place(job_id, "n1")
    assert (await waiting)["state"] == "placed"


@pytest.mark.parametrize(
    "query",
    [
        "timeout_s=nan",
        "timeout_s=inf",
        "timeout_s=-1",
        "timeout_s=1e9",
        "timeout_s=x",
        "state=lost",
    ],
)
async def test_a_wait_without_sense_is_refused(world: World, query: str) -> None:
    job_id = await world.run_to("queued")
    await world.ask("GET", f"/v1/jobs/{job_id}/wait?{query}", 422)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/jobs?since=9999-12-31T23:59:59-23:59",
        "/v1/jobs?since=0001-01-01T00:00:00%2B23:59",
        "/v1/jobs?since=99999999999d",
        "/v1/jobs?after=99999999999999999999999999",
        "/v1/jobs/%00",
        "/v1/jobs/%ff%fe",
        "/v1/jobs/..%2f..",
        "/v1/events?after=-1",
        "/v1/events?last=99999999999999999999",
        "/v1/state?at=-1",
        "/v1/jobs?label==x",
        "/v1/nodes/%00",
        "/v1/gpus?state=%ff",
    ],
)
async def test_no_path_or_query_is_a_fault_of_the_server(world: World, path: str) -> None:
    async with world.session.get(URL(world.url + path, encoded=True)) as response:
        assert response.status < 500, await response.text()


async def test_a_wait_gives_the_job_as_it_is_when_the_time_is_over(world: World) -> None:
    job_id = await world.run_to("queued")
    assert (await world.ask("GET", f"/v1/jobs/{job_id}/wait?timeout_s=0.05"))["state"] == "queued"


async def test_why_passes_on_the_answer_of_the_scheduler(world: World) -> None:
    job_id = await world.run_to("queued")
    await world.ask("GET", f"/v1/jobs/{job_id}/why", 503)
    asked = []

    async def scheduler(subject: str, data: bytes) -> bytes:
        asked.append(msgspec.msgpack.decode(data))
        return b'{"answer":"no GPU is free"}'

    await world.bus.subscribe(subjects.ask_scheduler("why"), scheduler)
    assert await world.ask("GET", f"/v1/jobs/{job_id}/why?at=3") == {"answer": "no GPU is free"}
    assert [(each["job_id"], each["at"]) for each in asked] == [(job_id, 3)]


async def test_a_read_waits_for_the_sequence_that_it_names(world: World) -> None:
    job_id = (await world.submit())["id"]
    for _ in range(20):
        seq = await world.writers.queue(job_id)
        assert (await world.ask("GET", f"/v1/jobs/{job_id}?min_seq={seq}"))["state"] == "queued"
        job_id = (await world.submit())["id"]


async def test_a_sequence_that_the_log_does_not_have_is_refused_at_once(world: World) -> None:
    """No answer has named it, and waiting for it would hold the request for the whole of
    MUSTER_SETTLE_MS.
    """
    last = (await world.log.bounds())[1]
    problem = await world.ask("GET", f"/v1/jobs?min_seq={last + 1}", 422)
    text = f"min_seq: {last + 1} is beyond the last commit of this log, {last}"
    assert text in problem["detail"]
    await world.ask("GET", f"/v1/jobs?min_seq={last}")


async def test_null_is_no_empty_body(world: World) -> None:
    job_id = (await world.submit())["id"]
    made = await world.ask("POST", "/v1/keys", 201, json={"user": "ada"})
    for method, path in (
        ("POST", f"/v1/jobs/{job_id}/hold"),
        ("POST", f"/v1/jobs/{job_id}/cancel"),
        ("POST", f"/v1/jobs/{job_id}/kill"),
        ("POST", f"/v1/keys/{made['id']}/rotate"),
    ):
        problem = await world.ask(method, path, 422, data=b"null")
        assert problem["detail"].startswith("the request body is null")
        await world.ask(
            method, path, 200 if "rotate" in path else 202, data=b""
        ) if "cancel" not in path else None


async def test_a_whole_number_may_be_written_with_a_point(world: World) -> None:
    job = await world.submit(nodes=1.0, priority=7.0)
    assert (job["nodes"], job["priority"]) == (1, 7)
    made = await world.ask(
        "POST", "/v1/deployments", 201, json={"name": "chat", "command": ["serve"], "replicas": 2.0}
    )
    assert made["wanted"] == 2
    assert (await world.ask("PATCH", "/v1/deployments/chat", json={"replicas": 3.0}))["wanted"] == 3
    problem = await world.ask("PATCH", "/v1/deployments/chat", 422, json={"replicas": 2.5})
    assert problem["detail"].startswith("replicas")


async def test_each_whole_number_of_a_query_is_held_to_its_published_bounds(world: World) -> None:
    document = await world.ask("GET", "/openapi.json")
    held = 0
    for path, operations in document["paths"].items():
        for each in operations.get("get", {}).get("parameters", ()):
            if each["schema"].get("type") == "integer" and "{" not in path and "audit" not in path:
                for value in (each["schema"]["minimum"] - 1, each["schema"]["maximum"] + 1):
                    problem = await world.ask("GET", f"{path}?{each['name']}={value}", 422)
                    assert problem["detail"].startswith(f"{each['name']}: {value} is out of bounds")
                    held += 1
    assert held > 30


async def test_a_request_without_an_accepted_key_sees_nothing(world: World) -> None:
    async with aiohttp.ClientSession() as stranger:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": KEY}):
            async with stranger.get(world.url + "/v1/jobs", headers=headers) as response:
                assert (response.status, response.content_type) == (401, "application/problem+json")


async def test_a_body_over_the_bound_is_refused_however_it_is_sent(world: World) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b"x" * 65536

    for data in (b"x" * (2 << 20), chunks()):
        async with world.session.post(world.url + "/v1/jobs", data=data) as response:
            assert response.status == 413


async def test_a_route_that_is_not_there_is_a_problem_too(world: World) -> None:
    assert (await world.ask("GET", "/v1/nothing", 404))["title"] == "Not found"
    await world.ask("DELETE", "/v1/jobs", 405)


async def test_gateway_that_stands_down_answers_open_requests(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world:

        async def unanswered(subject: str, data: bytes, expected: int) -> int:
            await world.writers.write(
                subject, f.JobAdmitted(job_id=JobId("j"))
            )  # another process took this instance's name
            raise AppendUnknown("no answer")

        world.log.append = unanswered  # type: ignore[method-assign]
        world.writers.log = MemoryLog(world.log.stream)
        answer = await world.ask("POST", "/v1/jobs", 503, json={"command": ["true"]})
        assert "job.submitted: this process stopped before the log" in answer["detail"]
        assert "It is unknown whether it was recorded" in answer["detail"]
