"""/v1/audit over real HTTP with the real audit behind it: events in pages and as they come,
resumable; and the example consumer, killed.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nkeys
import pytest

from libs.common.transport.log_memory import MemoryLog, MemoryStream
from libs.common.transport.snapshot_store import MemorySnapshots
from services.api_gateway.http import audit as routes
from services.audit.answers import Answers
from services.audit.chain.heads import Head, Signer
from services.audit.service import Audit
from services.audit.store.store import Store
from tests.integration.gateway_world import KEY, World, gateway_world
from tests.tidy import ROOT

CONSUMER = ROOT / "examples" / "audit_consumer.py"
SOON_S = 30.0


class Audited:
    """A gateway and audit over one log; `head` is what audit says is the newest."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.head: Head | None = None

    async def newest(self) -> Head | None:
        return self.head

    async def events(self, after: str = "", **query: object) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.world.ask(
            "GET", "/v1/audit/events", params={"after": after, **query}
        )
        return found

    async def all(self) -> list[str]:
        """The ids of all that is archived, once that is all of the log."""
        async with asyncio.timeout(SOON_S):
            while True:
                found = await self.events(limit=1_000)
                if found and int(found[-1]["sequence"]) == (await self.world.log.bounds())[1]:
                    return [event["id"] for event in found]
                await asyncio.sleep(0.02)


@asynccontextmanager
async def audited(tmp_path: Path) -> AsyncIterator[Audited]:
    stream = MemoryStream()
    async with gateway_world(tmp_path, stream) as world:
        made, stop = Audited(world), asyncio.Event()
        store = Store(f"sqlite:///{tmp_path / 'audit.db'}")
        audit = Audit(MemoryLog(stream, idle_s=0.05), store, MemorySnapshots())
        await audit.open()
        await Answers(store, "c1", audit.beyond, made.newest, audit.log_end).listen(world.bus)
        running = asyncio.create_task(audit.run(stop))
        await world.writers.begin_term()
        await world.writers.register("n1")
        yield made
        stop.set()
        await running


async def test_a_page_is_a_batch_of_cloud_events_and_the_last_id_leads_to_the_next(
    tmp_path: Path,
) -> None:
    async with audited(tmp_path) as at:
        await at.world.run_to("completed")
        ids = await at.all()
        pages, after = [], ""
        while page := await at.events(after, limit=2):
            pages += [event["id"] for event in page]
            after = page[-1]["id"]
        assert pages == ids and len(ids) > 6
        async with at.world.session.get(at.world.url + "/v1/audit/events?limit=1") as response:
            assert response.content_type == "application/cloudevents-batch+json"
            (event,) = json.loads(await response.read())
        assert (event["specversion"], event["source"], event["type"]) == (
            "1.0",
            "c1",
            "io.muster.term.began",
        )


async def test_follower_receives_new_events_and_resumes_after_the_last_id(
    tmp_path: Path,
) -> None:
    async with audited(tmp_path) as at:
        ids = await at.all()
        async with at.world.session.get(at.world.url + "/v1/audit/events?follow=1") as response:
            assert await heard(response.content, len(ids)) == ids
            await at.world.run_to("queued")
            more = await heard(response.content, 3)
        headers = {"last-event-id": more[0]}
        async with at.world.session.get(
            at.world.url + "/v1/audit/events?follow=1", headers=headers
        ) as response:
            assert await heard(response.content, 2) == more[1:]
        assert (await at.all())[len(ids) :] == more


async def heard(content: Any, count: int) -> list[str]:
    found: list[str] = []
    async with asyncio.timeout(SOON_S):
        while len(found) < count:
            line = await content.readline()
            if line.startswith(b"id: "):
                found.append(line[4:].decode().strip())
    return found


async def test_invalid_position_and_too_many_followers_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with audited(tmp_path) as at:
        problem = await at.world.ask("GET", "/v1/audit/events?after=last", 422)
        assert "is not an event's id" in problem["detail"]
        await at.world.ask("GET", "/v1/audit/events?limit=5000", 422)
        monkeypatch.setattr(routes, "FOLLOWERS_MAX", 0)
        await at.world.ask("GET", "/v1/audit/events?follow=1", 503)


async def test_a_follower_that_goes_leaves_its_place(tmp_path: Path) -> None:
    async with audited(tmp_path) as at:
        async with at.world.session.get(at.world.url + "/v1/audit/events?follow=1") as response:
            await heard(response.content, 1)
            assert at.world.gateway.followers == 1
        async with asyncio.timeout(SOON_S):
            while at.world.gateway.followers:
                await at.world.run_to("queued")


async def test_the_newest_head_is_shown_and_without_one_that_is_said(tmp_path: Path) -> None:
    async with audited(tmp_path) as at:
        assert (
            "MUSTER_AUDIT_KEY_FILE" in (await at.world.ask("GET", "/v1/audit/head", 404))["detail"]
        )
        at.head = Signer(nkeys.encode_seed(b"s" * 32, nkeys.PREFIX_BYTE_USER)).sign(
            "c1", 2, "ab" * 32, "2026-01-31T12:00:00Z"
        )
        shown = await at.world.ask("GET", "/v1/audit/head")
        assert Head(**shown) == at.head


async def test_without_audit_the_answer_is_one_clear_line(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        await world.ask("GET", "/v1/audit/events", 503)
        await world.ask("GET", "/v1/audit/head", 503)


async def consumer(at: Audited, *arguments: str, key: str = KEY) -> asyncio.subprocess.Process:
    environment = {"PATH": os.environ["PATH"], "MUSTER_URL": at.world.url, "MUSTER_API_KEY": key}
    line = [sys.executable, str(CONSUMER), *arguments]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*line, env=environment, stdout=pipe, stderr=pipe)


def written(path: Path) -> list[str]:
    return [
        json.loads(line)["id"]
        for line in path.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]


def kept(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


async def until_written(path: Path, ids: list[str]) -> list[str]:
    async with asyncio.timeout(SOON_S):
        while True:
            found = written(path)
            if len(found) >= len(ids):
                return found
            await asyncio.sleep(0.02)


async def until_kept(path: Path, last: str) -> None:
    while kept(path) != last:
        await asyncio.sleep(0.02)


async def test_the_example_writes_every_event_once_however_often_it_is_killed(
    tmp_path: Path,
) -> None:
    file = tmp_path / "events.ndjson"
    file.touch()
    async with audited(tmp_path) as at:
        for _ in range(4):
            running = await consumer(at, "--output", str(file))
            await until_written(file, await at.all())
            await at.world.run_to("completed")
            running.kill()
            await running.wait()
            with file.open("ab") as torn:
                torn.write(b'{"id":"9')
        running = await consumer(at, "--output", str(file))
        ids = await at.all()
        assert await until_written(file, ids) == ids
        running.kill()
        await running.wait()


async def test_the_example_prints_and_keeps_its_position_in_a_file(tmp_path: Path) -> None:
    async with audited(tmp_path) as at:
        printed: list[str] = []
        for _ in range(2):
            running = await consumer(at, "--position", str(tmp_path / "at"))
            await at.world.run_to("queued")
            ids = await at.all()
            assert running.stdout is not None
            async with asyncio.timeout(SOON_S):
                while len(printed) < len(ids):
                    printed.append(json.loads(await running.stdout.readline())["id"])
                await until_kept(tmp_path / "at", ids[-1])
            running.kill()
            await running.wait()
        assert printed == await at.all()


async def test_the_example_ends_when_it_is_refused(tmp_path: Path) -> None:
    async with audited(tmp_path) as at:
        running = await consumer(at, key="wrong")
        _, said = await running.communicate()
        assert running.returncode == 1 and b"refused: 401" in said
