"""Requests that record something while the log does not answer: they wait within a bound."""

from pathlib import Path

from libs.common.transport.log import AppendUnknown
from tests.integration.gateway_world import gateway_world


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
        assert "It may have been recorded" in detail


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
