"""The search of a job's output over HTTP: bounded, continued, and only for who may see the job."""

from pathlib import Path

import pytest

from services.api_gateway.http import output_search
from tests.integration.gateway_world import FakeNode, World, gateway_world


async def printed(world: World, text: bytes) -> str:
    await world.writers.begin_term()
    await world.writers.register("n1")
    job_id = await world.run_to("running")
    node = FakeNode()
    await node.listen(world.bus, "n1")
    node.say(job_id, "stdout", text)
    return job_id


async def test_lines_are_found_and_the_search_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        job_id = await printed(world, b"Error one\nfine\nerror two\nERROR three\n")
        path = f"/v1/jobs/{job_id}/output/search?find=error"
        first = await world.ask("GET", f"{path}&limit=2")
        assert [each["line"] for each in first["matches"]] == ["Error one", "error two"]
        assert first["more"]
        rest = await world.ask("GET", f"{path}&offset={first['next']}")
        assert rest["matches"] == [{"offset": 25, "line": "ERROR three"}]
        assert not rest["more"]


async def test_one_search_reads_a_bounded_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_search, "READ_BYTES_MAX", 2 << 20)
    async with gateway_world(tmp_path) as world:
        size = output_search.READ_BYTES_MAX + (1 << 20)
        job_id = await printed(world, b"x" * 99 + b"\n" * (size - 104) + b"last\n")
        path = f"/v1/jobs/{job_id}/output/search?find=last"
        first = await world.ask("GET", path)
        assert (first["matches"], first["more"]) == ([], True)
        rest = await world.ask("GET", f"{path}&offset={first['next']}")
        assert [each["line"] for each in rest["matches"]] == ["last"]


async def test_a_search_without_text_or_of_several_lines_is_refused(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        job_id = await printed(world, b"")
        for text in ("", "a%0Ab", "x" * 257):
            problem = await world.ask("GET", f"/v1/jobs/{job_id}/output/search?find={text}", 422)
            assert problem["detail"].startswith("find: ")


async def test_another_tenant_cannot_search(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        job_id = await printed(world, b"secret\n")
        await world.ask("PUT", "/v1/tenants/other", 201, json={})
        async with world.as_("member", "eve", "other") as eve:
            await eve.ask("GET", f"/v1/jobs/{job_id}/output/search?find=secret", 404)
