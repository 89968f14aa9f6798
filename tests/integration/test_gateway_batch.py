"""POST /v1/jobs:batch: each job is answered as POST /v1/jobs answers it, in order."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from libs.common import facts as f
from libs.common.transport.log import AppendUnknown
from libs.common.transport.log_memory import MemoryStream
from tests.integration.gateway_world import Json, World, gateway_world

BATCH = "/v1/jobs:batch"
GOOD = {"command": ["true"]}
WRONG = {"command": ["true"], "gpu": 1}


async def submit(world: World, *jobs: Json, status: int = 200, **fields: Any) -> Json:
    return await world.ask("POST", BATCH, status, json={"jobs": list(jobs), **fields})


async def keyed(world: World, *jobs: Json, **fields: Any) -> tuple[int, bool, Json]:
    async with world.session.post(
        world.url + BATCH,
        json={"jobs": list(jobs), **fields},
        headers={"idempotency-key": "8f14e45f"},
    ) as response:
        replayed = response.headers.get("idempotent-replayed") == "true"
        return response.status, replayed, await response.json()


async def submissions(world: World) -> list[f.JobSubmitted]:
    return [fact for fact in await world.said() if isinstance(fact, f.JobSubmitted)]


async def test_jobs_are_answered_in_order_and_recorded_in_one_commit(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        found = await submit(world, *({"command": ["true"], "name": f"j{i}"} for i in range(20)))
        assert [each["job"]["name"] for each in found["jobs"]] == [f"j{i}" for i in range(20)]
        assert {each["status"] for each in found["jobs"]} == {201}
        assert (found["accepted"], found["refused"]) == (20, 0)
        assert len({each["job"]["seq"] for each in found["jobs"]}) == 1
        shown = await world.ask("GET", "/v1/jobs/j7")
        assert shown["id"] == found["jobs"][7]["job"]["id"]


async def test_job_that_is_refused_keeps_back_no_other_one(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        found = await submit(world, GOOD, WRONG, 7, {"command": ["x"], "after": "afterok:no"}, GOOD)
        assert [each["status"] for each in found["jobs"]] == [201, 422, 422, 404, 201]
        assert (found["accepted"], found["refused"]) == (2, 3)
        alone = await world.ask("POST", "/v1/jobs", 422, json=WRONG)
        assert found["jobs"][1]["problem"] == {**alone, "retry_after_s": None}
        assert found["jobs"][1]["job"] is None
        assert len(await submissions(world)) == 2


async def test_all_or_nothing_submits_none_if_one_is_refused(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        problem = await submit(world, GOOD, WRONG, GOOD, status=422, all_or_nothing=True)
        assert problem["job"] == 1
        assert problem["detail"].startswith("jobs[1]: field 'gpu' is not known")
        assert problem["detail"].endswith("no job of this batch was submitted")
        assert await submissions(world) == []
        found = await submit(world, GOOD, GOOD, all_or_nothing=True)
        assert (found["accepted"], len(await submissions(world))) == (2, 2)


async def test_job_may_wait_for_an_earlier_one_of_its_batch(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        old = await world.submit(name="train")
        for atomic in (False, True):
            found = await submit(
                world,
                {"command": ["true"], "name": "train"},
                {"command": ["true"], "after": "afterok:train"},
                all_or_nothing=atomic,
            )
            first, then = (each["job"] for each in found["jobs"])
            assert then["after"] == [first["id"]] != [old["id"]]
        found = await submit(
            world, {**WRONG, "name": "train"}, {"command": ["true"], "after": "afterok:train"}
        )
        assert "was refused" in found["jobs"][1]["problem"]["detail"]


async def test_job_does_not_wait_for_an_element_of_an_older_array_of_that_name(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world:
        old = await world.submit(name="train")
        found = await submit(
            world,
            {"command": ["true"], "name": "train", "array": "0-9"},
            {"command": ["true"], "after": "afterok:train_3"},
            {"command": ["true"], "name": old["id"]},
            {"command": ["true"], "after": f"afterok:{old['id']}"},
        )
        assert [each["status"] for each in found["jobs"]] == [201, 422, 201, 201]
        assert "an element of an array" in found["jobs"][1]["problem"]["detail"]
        assert found["jobs"][3]["job"]["after"] == [old["id"]]


async def test_dry_run_shows_each_job_and_records_none(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        found = await world.ask("POST", f"{BATCH}?dry_run=true", json={"jobs": [GOOD, WRONG]})
        assert [each["status"] for each in found["jobs"]] == [200, 422]
        assert found["jobs"][0]["checked"]["spec"]["command"] == ["true"]
        assert await submissions(world) == []


@pytest.mark.attack
async def test_batch_over_its_bounds_is_refused(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await submit(world, *[GOOD] * 101, status=422)
        await submit(world, status=422)
        large = {"command": ["true"], "env": {"A": "a" * 40_000}}
        problem = await submit(world, *[large] * 8, status=413, all_or_nothing=True)
        assert "submit fewer at once" in problem["detail"]
        assert await submissions(world) == []
        found = await submit(world, *[large] * 8)
        assert found["accepted"] == 8
        assert len({each["job"]["seq"] for each in found["jobs"]}) == 2


async def test_repeated_batch_is_answered_with_the_first_jobs(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        first, again = await keyed(world, GOOD, WRONG), await keyed(world, GOOD, WRONG)
        assert (first[:2], again[:2]) == ((200, False), (200, False))
        assert [each["status"] for each in again[2]["jobs"]] == [200, 422]
        assert first[2]["jobs"][0]["job"]["id"] == again[2]["jobs"][0]["job"]["id"]
        assert len(await submissions(world)) == 1
        status, _, problem = await keyed(world, GOOD, GOOD)
        assert status == 409 and "another request" in problem["detail"]
        assert len(await submissions(world)) == 1


@pytest.mark.attack
async def test_same_key_of_another_user_does_not_get_the_first_ones_jobs(tmp_path: Path) -> None:
    async with (
        gateway_world(tmp_path) as root,
        root.as_("member", "ada") as ada,
        root.as_("member", "bob") as bob,
    ):
        assert (await keyed(ada, GOOD))[0] == 200
        status, _, problem = await keyed(bob, GOOD)
        assert status == 409 and "another request" in problem["detail"]
        assert (await keyed(ada, GOOD))[1]


async def test_same_batches_at_two_gateways_are_the_same_jobs(tmp_path: Path) -> None:
    stream = MemoryStream()
    async with (
        gateway_world(tmp_path, stream) as world,
        gateway_world(tmp_path, stream, instance="b") as other,
    ):
        answers = await asyncio.gather(
            *(keyed(each, GOOD, GOOD, all_or_nothing=True) for each in (world, other) * 4)
        )
        ids = {tuple(each["job"]["id"] for each in answer[2]["jobs"]) for answer in answers}
        assert len(ids) == 1
        assert {answer[1] for answer in answers} == {False, True}
        assert len(world.gateway.claims) == 0


async def test_key_used_at_another_gateway_meanwhile_names_the_jobs_that_exist(
    tmp_path: Path,
) -> None:
    stream = MemoryStream()
    async with (
        gateway_world(tmp_path, stream) as world,
        gateway_world(tmp_path, stream, instance="b") as other,
    ):
        append, appending, first_done = other.log.append, asyncio.Event(), asyncio.Event()

        async def after_the_first(subject: str, data: bytes, expected: int) -> int:
            appending.set()
            await first_done.wait()
            return await append(subject, data, expected)

        other.log.append = after_the_first  # type: ignore[method-assign]
        late = asyncio.create_task(keyed(other, GOOD, GOOD, all_or_nothing=True))
        await appending.wait()
        first = await keyed(world, GOOD, all_or_nothing=True)
        first_done.set()
        status, _, problem = await late
        made = [fact.job_id for fact in await submissions(world)]
        assert (first[0], status, problem["job"]) == (200, 409, 0)
        assert "no job" not in problem["detail"]
        assert made[-1] != first[2]["jobs"][0]["job"]["id"]
        assert problem["detail"].endswith(f"were submitted, cancel them: {made[-1]}")


async def test_each_job_counts_against_the_tenants_bytes(tmp_path: Path) -> None:
    async with (
        gateway_world(tmp_path, tenant_bytes_per_minute=4_000) as root,
        root.as_("member", "ada") as world,
    ):
        job = {"command": ["true"], "env": {"A": "a" * 500}}
        found = await submit(world, *[job] * 20)
        statuses = [each["status"] for each in found["jobs"]]
        assert 0 < found["accepted"] < 8
        assert statuses == [201] * found["accepted"] + [429] * found["refused"]
        assert found["jobs"][-1]["problem"]["retry_after_s"] > 0
        problem = await submit(world, *[job] * 20, status=429, all_or_nothing=True)
        assert "no job of this batch" in problem["detail"]


@pytest.mark.attack
async def test_each_job_uses_the_tenants_share_of_time(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as root, root.as_("member", "ada") as world:
        turns: list[float] = []
        shares = root.gateway.time_shares
        owe = shares.owe
        shares.owe = lambda tenant, spent_s: (turns.append(spent_s), owe(tenant, spent_s))[1]  # type: ignore[method-assign]
        await submit(world, *[GOOD] * 10)
        assert len(turns) == 10


async def test_jobs_that_the_log_does_not_take_are_unavailable(tmp_path: Path) -> None:
    async def unanswered(subject: str, data: bytes, expected: int) -> int:
        raise AppendUnknown("no answer")

    async with gateway_world(tmp_path, record_ms=300) as world:
        world.log.append = unanswered  # type: ignore[method-assign]
        found = await submit(world, GOOD, WRONG)
        assert [each["status"] for each in found["jobs"]] == [503, 422]
        problem = await submit(world, GOOD, status=503, all_or_nothing=True)
        assert (
            "unknown whether it was recorded" in problem["detail"]
            or "not recorded" in problem["detail"]
        )
        assert "no job of this batch" not in problem["detail"] and "job" not in problem


async def test_batch_ends_where_the_log_does_not_take_its_jobs(tmp_path: Path) -> None:
    large = {"command": ["true"], "env": {"A": "a" * 40_000}}
    async with gateway_world(tmp_path, record_ms=300) as world:
        append, clock, failed = world.log.append, asyncio.get_running_loop().time, []

        async def late(subject: str, data: bytes, expected: int) -> int:
            failed.append(clock())
            if clock() < failed[0] + 0.4:
                raise AppendUnknown("no answer")
            return await append(subject, data, expected)

        world.log.append = late  # type: ignore[method-assign]
        after = {"command": ["true"], "after": "afterany:prep"}
        found = await submit(world, {**large, "name": "prep"}, *[large] * 6, after)
        assert {each["status"] for each in found["jobs"]} == {503}
        details = [each["problem"]["detail"] for each in found["jobs"]]
        assert "unknown whether it was recorded" in details[0]
        assert details[-1].startswith("this job was not submitted, because earlier jobs")
        await world.gateway.writer.emptied()
        assert not any(fact.spec.after for fact in await submissions(world))


@pytest.mark.attack
async def test_key_without_the_right_to_submit_has_no_batch(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as root:
        async with root.as_("viewer", "eve") as viewer:
            await submit(viewer, GOOD, status=403)
        async with root.as_("member", "ada") as ada:
            found = await submit(ada, {**GOOD, "user": "bob"}, GOOD)
            assert [each["status"] for each in found["jobs"]] == [403, 201]
            assert found["jobs"][1]["job"]["user"] == "ada"
