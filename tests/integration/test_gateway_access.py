"""Access records over real HTTP, in the log and in the archive, and the users who may read them."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from libs.common import facts as f
from libs.common.messages import access_entry
from libs.common.messages.access_entry import AccessEntry
from services.audit.store.store import Store
from tests.integration.gateway_world import KEY, World, gateway_world

KILL = "/v1/jobs/{ref}/kill"
NOT = "the role viewer may not use"
ASK = "ask an administrator for a key with another role"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path, records_access=True) as found:
        yield found


def unpacked(facts: list[f.AnyFact | f.Unknown]) -> list[AccessEntry]:
    return [
        entry
        for fact in facts
        if isinstance(fact, f.AccessRecorded)
        for entry in access_entry.unpack(fact.entries)
    ]


async def recorded(world: World) -> list[AccessEntry]:
    """All entries, once nothing waits."""
    await world.gateway.access.flush()
    entries = [await world.log.get(seq) for seq in range(1, (await world.log.bounds())[1] + 1)]
    found = unpacked(
        [fact for entry in entries if entry is not None for fact in f.decode(entry.data).facts]
    )
    return sorted(found, key=lambda entry: entry.at_ns)


async def test_denied_jobs_of_a_batch_are_all_in_its_record(world: World) -> None:
    async with world.as_("member", "ada") as ada:
        mine, bobs = {"command": ["true"]}, {"command": ["true"], "user": "bob"}
        jobs = {"jobs": [bobs, mine, {**bobs, "user": "eve"}]}
        found = await ada.ask("POST", "/v1/jobs:batch", json=jobs)
        assert [each["status"] for each in found["jobs"]] == [403, 201, 403]
    (row,) = [entry for entry in await recorded(world) if entry.route == "/v1/jobs:batch"]
    assert row.status == 200 and row.denied.startswith("jobs 0, 2: ")
    assert found["jobs"][0]["problem"]["detail"][:40] in row.denied


async def test_allowed_and_denied_requests_are_recorded_without_keys_or_bodies(
    world: World,
) -> None:
    async with aiohttp.ClientSession() as stranger:
        await (
            await stranger.get(
                world.url + "/v1/jobs?name=x", headers={"authorization": "Bearer wrong-key"}
            )
        ).read()
    job = await world.submit(name="planted-word")
    async with world.as_("viewer", "ada") as ada:
        await ada.ask("GET", f"/v1/jobs/{job['id']}")
        await ada.ask("POST", f"/v1/jobs/{job['id']}/kill", 403)
        await ada.ask("POST", "/v1/chat/completions", 403, json={"model": "m"})
    rows = [
        (entry.user, entry.method, entry.route, entry.ids, entry.status, entry.denied)
        for entry in await recorded(world)
    ]
    assert rows == [
        ("", "GET", "none", ("/v1/jobs",), 401, "the key is not known"),
        ("tests", "POST", "/v1/jobs", (), 201, ""),
        ("tests", "POST", "/v1/keys", (), 201, ""),
        ("ada", "GET", "/v1/jobs/{ref}", (job["id"],), 200, ""),
        ("ada", "POST", KILL, (job["id"],), 403, f"{NOT} POST {KILL}: {ASK}"),
        ("ada", "POST", "/v1/chat/completions", (), 403, f"{NOT} POST /v1/chat/completions: {ASK}"),
    ]  # fmt: skip
    batches = [
        entry.data
        for entry in [
            await world.log.get(seq) for seq in range(1, (await world.log.bounds())[1] + 1)
        ]
        if entry
    ]
    assert not any(KEY.encode() in data or b"wrong-key" in data for data in batches)


async def test_a_hidden_job_is_a_denial_in_the_record_and_only_missing_to_the_asker(
    world: World,
) -> None:
    await world.ask("PUT", "/v1/tenants/physics", 201)
    job = await world.submit()
    async with world.as_("member", "ada", "physics") as ada:
        hidden = await ada.ask("GET", f"/v1/jobs/{job['id']}", 404)
        missing = await ada.ask("GET", "/v1/jobs/nothing", 404)
    assert hidden["detail"].replace(job["id"], "nothing") == missing["detail"]
    last = (await recorded(world))[-2:]
    assert [bool(entry.denied) for entry in last] == [True, False]


async def test_every_answer_names_its_request(world: World) -> None:
    async with world.session.get(
        world.url + "/v1/cluster", headers={"x-request-id": "mine-7"}
    ) as response:
        assert response.headers["x-request-id"] == "mine-7"
    async with world.session.get(
        world.url + "/v1/nowhere", headers={"x-request-id": "not sane!"}
    ) as response:
        own = response.headers["x-request-id"]
        assert response.status == 404 and own not in ("", "not sane!")
    assert [entry.request_id for entry in await recorded(world)] == ["mine-7", own]


async def test_the_audit_archive_holds_the_entries_in_its_chain(
    world: World, tmp_path: Path
) -> None:
    """The archive keeps commits as they are; the entries are read back out of it, and belong to the
    chain of hashes.
    """
    await world.ask("GET", "/v1/cluster", headers={"x-request-id": "find-me"})
    await recorded(world)
    entries = [
        entry
        for entry in [
            await world.log.get(seq) for seq in range(1, (await world.log.bounds())[1] + 1)
        ]
        if entry
    ]
    store = Store(f"sqlite:///{tmp_path}/audit.db")
    store.migrate()
    store.append(entries)
    records = list(store.commits())
    found = unpacked([fact for record in records for fact in f.decode(record.data).facts])
    assert [entry.request_id for entry in found] == ["find-me"]
    head = store.head()
    store.close()
    assert head is not None and head.seq == entries[-1].seq


async def test_operators_read_the_record_and_members_do_not(world: World) -> None:
    await world.ask("GET", "/v1/jobs/nothing", 404)
    async with world.as_("operator", "olga") as olga, world.as_("member", "ada") as ada:
        await ada.ask("GET", "/v1/access", 403)
        await recorded(world)
        await world.settle()
        whole = await olga.ask("GET", "/v1/access")
        assert (whole["more"], whole["dropped"]) == (False, 0)
        assert next(
            (row["user"], row["status"], row["ids"])
            for row in whole["access"]
            if row["route"] != "/v1/keys"
        ) == (
            *("tests", 404),
            ["nothing"],
        )
        denied = (await olga.ask("GET", "/v1/access?denied=1"))["access"]
        assert [(row["user"], row["route"], row["status"]) for row in denied] == [
            ("ada", "/v1/access", 403)
        ]
        assert (await olga.ask("GET", "/v1/access?user=unknown"))["access"] == []
        assert (await olga.ask("GET", "/v1/events"))[
            "events"
        ] == []  # the keys that were made are the administrator's to know
        assert {event["kind"] for event in (await world.ask("GET", "/v1/events"))["events"]} == {
            "key.created"
        }
        kinds = {
            event["kind"] for event in (await olga.ask("GET", "/v1/events?kind=access."))["events"]
        }
        assert kinds == {"access.recorded"}


async def test_entries_come_to_the_log_by_themselves(world: World) -> None:
    await world.ask("GET", "/v1/cluster")
    async with asyncio.timeout(5):
        while not world.gateway.cluster.seq:
            await asyncio.sleep(0.01)


async def test_a_full_log_refuses_no_read_and_its_gap_is_counted(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, records_access=True, filled=0.95) as world:
        while world.gateway.fill < 0.95:
            await asyncio.sleep(0.01)
        await world.ask("GET", "/v1/cluster")
        assert await recorded(world) == []
        world.gateway.fill = 0.1
        await world.ask("GET", "/v1/cluster")
        await world.gateway.access.flush()
        await world.settle()
        assert (await world.ask("GET", "/v1/access"))["dropped"] == 1
