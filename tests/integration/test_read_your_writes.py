"""`min_seq`: no answer of a gateway, to a read or to a change, is older than that commit."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from libs.common.transport.log import Entry
from libs.common.transport.log_memory import MemoryStream
from services.api_gateway.access import roles
from tests.integration.gateway_world import World, gateway_world

LAG_S = 0.1


@asynccontextmanager
async def two_gateways(tmp_path: Path) -> AsyncIterator[tuple[World, World]]:
    """Two gateways of one log. The second folds each commit LAG_S late."""
    stream = MemoryStream()
    async with (
        gateway_world(tmp_path, stream) as first,
        gateway_world(tmp_path, stream, instance="b") as late,
    ):
        fold = late.gateway._fold

        async def fold_late(batch: Sequence[Entry]) -> None:
            await asyncio.sleep(LAG_S)
            await fold(batch)

        late.gateway._fold = fold_late  # type: ignore[method-assign]
        yield first, late


CHANGES = [
    ("POST", "/v1/jobs/{id}/hold", 202, None),
    ("POST", "/v1/jobs/{id}/release", 202, None),
    ("POST", "/v1/jobs/{id}/cancel", 202, None),
    ("PATCH", "/v1/jobs/{id}", 200, {"priority": 60}),
    ("POST", "/v1/jobs/{id}/diagnoses", 409, None),
    ("PUT", "/v1/jobs/{id}/stdin", 425, None),
]


@pytest.mark.parametrize(("method", "path", "status", "body"), CHANGES)
async def test_a_change_at_another_gateway_waits_for_the_commit_that_it_names(
    tmp_path: Path, method: str, path: str, status: int, body: object
) -> None:
    async with two_gateways(tmp_path) as (first, late):
        job_id = (await first.submit(stdin=True))["id"]
        seq = first.gateway.cluster.seq
        assert job_id not in late.gateway.cluster.jobs
        where = path.format(id=job_id)
        await late.ask(method, f"{where}?min_seq={seq}", status, json=body)


@pytest.mark.parametrize("verb", ["exec", "forward"])
async def test_a_channel_at_another_gateway_waits_for_the_commit_that_it_names(
    tmp_path: Path, verb: str
) -> None:
    async with two_gateways(tmp_path) as (first, late):
        job_id = (await first.submit())["id"]
        seq = first.gateway.cluster.seq
        path = f"{late.url}/v1/jobs/{job_id}/{verb}?min_seq={seq}"
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await late.session.ws_connect(path)
        # The job is found; what is missing is the request in the header.
        assert refused.value.status == 422


async def test_every_route_that_takes_min_seq_minds_it(tmp_path: Path) -> None:
    """A commit that the log does not have is refused, so a route that answers otherwise ignores
    the number.
    """
    async with gateway_world(tmp_path) as world:
        paths = (await world.ask("GET", "/openapi.json"))["paths"]
        taking = [
            (method.upper(), path)
            for path, methods in paths.items()
            for method, declared in methods.items()
            if any(each["name"] == "min_seq" for each in declared.get("parameters", ()))
            and path not in roles.PUBLIC
        ]
        assert len(taking) > 100
        seq = (await world.log.bounds())[1] + 1_000
        ignoring = []
        for method, path in taking:
            url = f"{world.url}{path}?min_seq={seq}"
            async with world.session.request(method, url, json={}) as response:
                text = await response.text()
                if response.status != 422 or f"min_seq: {seq} is beyond" not in text:
                    ignoring.append((method, path, response.status, text))
        assert not ignoring


async def test_a_wrong_min_seq_of_a_change_is_refused(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        job_id = (await world.submit())["id"]
        for wrong in ("x", "-1", "²", str(1 << 63), "9" * 5_000):
            path = f"/v1/jobs/{job_id}/hold?min_seq={wrong}"
            assert "min_seq" in (await world.ask("POST", path, 422))["detail"]


async def test_a_request_without_a_key_does_not_wait(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, aiohttp.ClientSession() as stranger:
        path = f"{world.url}/v1/session?min_seq=1000"
        async with stranger.post(path, json={"key": "x"}) as response:
            assert response.status == 401
