"""Requests that record something while the log does not answer: they wait within a bound."""

import asyncio
from pathlib import Path

import pytest

from libs.common.facts import AnyFact
from libs.common.transport import writer
from libs.common.transport.log import AppendUnknown
from tests.integration.gateway_world import World, gateway_world


async def unanswered(subject: str, data: bytes, expected: int) -> int:
    raise AppendUnknown("no answer")


async def test_unresponsive_log_gives_503_in_time(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, record_ms=300) as world:
        world.log.append = unanswered  # type: ignore[method-assign]
        body = {"command": ["true"]}
        async with world.session.post(world.url + "/v1/jobs", json=body) as response:
            assert response.status == 503 and int(response.headers["Retry-After"]) > 0
            detail = (await response.json())["detail"]
        assert "within 0 s: check that its servers run and have disk space" in detail
        assert "It is unknown whether it was recorded" in detail


async def test_request_that_never_reached_the_log_is_not_recorded_later(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, record_ms=300) as world:
        appended = world.log.append
        world.log.append = unanswered  # type: ignore[method-assign]
        await world.ask("POST", "/v1/jobs", 503, json={"command": ["true"], "name": "unknown"})
        answer = await world.ask("POST", "/v1/jobs", 503, json={"command": ["true"], "name": "no"})
        assert "It was not recorded: try again" in answer["detail"]

        world.log.append = appended  # type: ignore[method-assign]
        await world.ask("POST", "/v1/jobs", 201, json={"command": ["true"], "name": "later"})
        found = await world.ask("GET", "/v1/jobs?all=true", 200)
        assert {job["name"] for job in found["jobs"]} == {"unknown", "later"}


async def submitted(world: World) -> str:
    """Submit a job that the log does not take, and return why."""
    answer = await world.ask("POST", "/v1/jobs", 503, json={"command": ["true"]})
    return str(answer["detail"])


async def test_request_that_the_writer_refuses_was_certainly_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_world(tmp_path, record_ms=300) as world:
        monkeypatch.setattr(writer, "WAITING_GROUPS_MAX", 0)
        why = await submitted(world)
        assert why == (
            "job.submitted was not recorded: 0 commits wait for the log: try again in a few seconds"
        )


async def test_request_whose_facts_were_never_sent_was_certainly_not_recorded(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world:
        put = world.gateway.writer.put
        waiting = asyncio.Event()

        def noted(facts: list[AnyFact], share: str = "") -> asyncio.Future[int]:
            found = put(facts, share)
            waiting.set()
            return found

        sent = asyncio.Event()

        async def silent(subject: str, data: bytes, expected: int) -> int:
            sent.set()
            await asyncio.Event().wait()
            return 0

        world.log.append = silent  # type: ignore[method-assign]
        first = asyncio.create_task(submitted(world))
        await sent.wait()
        world.gateway.writer.put = noted  # type: ignore[method-assign, assignment]
        second = asyncio.create_task(submitted(world))
        await waiting.wait()
        world.running.cancel()
        assert "It is unknown whether it was recorded" in await first
        assert (await second).startswith("job.submitted was not recorded: this process stopped")
