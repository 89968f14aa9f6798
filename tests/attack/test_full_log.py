"""One tenant fills the log.

Changes stop in order, endings and what must be on the record keep their room, and the tenant is
slowed.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from libs.common import facts as f
from libs.common.facts import AnyFact
from libs.common.messages import access_entry
from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.common.transport.kv import MemoryOutputs
from libs.common.transport.log_jetstream import JetStreamLog, create_stream
from libs.common.transport.objects_nats import filled_part
from libs.common.transport.snapshot_store import MemorySnapshots
from services.api_gateway.gateway import Gateway
from services.api_gateway.problems import Problem
from services.audit.trim.trim import Policy, Standing, decide
from tests.given import spec
from tests.integration.gateway_world import World, gateway_world
from tests.natsserver import NatsServer

BIG = {"env": {"BIG": "x" * 60_000}}
MIB = 1 << 20


async def until_full(world: World, fill: float) -> None:
    """Wait until the gateway has read how full the log is."""
    while world.gateway.fill < fill:
        await asyncio.sleep(0.01)


async def test_changing_a_priority_is_refused_with_submissions_and_cancelling_is_not(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path) as world:
        job_id = await world.run_to("queued")
        world.gateway.fill = 0.81
        refused: dict[str, Any] = {"json": {"priority": 90}}
        problem = await world.ask("PATCH", f"/v1/jobs/{job_id}", 507, **refused)
        assert (
            "job.updated is accepted up to 80%" in problem["detail"]
            and problem["retry_after_s"] > 0
        )
        world.gateway.fill = 0.96
        await world.ask("POST", f"/v1/jobs/{job_id}/cancel", 202)
        assert not any(isinstance(fact, f.JobUpdated) for fact in await world.said())


async def test_access_is_recorded_where_submissions_stopped_long_ago(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, records_access=True, filled=0.9) as world:
        await until_full(world, 0.9)
        await world.ask("GET", "/v1/cluster")
        await world.gateway.access.flush()
        await world.settle()
        assert (await world.ask("GET", "/v1/access"))["dropped"] == 0


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/keys", {"user": "eve", "role": "admin"}),
        ("PUT", "/v1/tenants/t", {"max_gpus": 1}),
    ],
)
async def test_a_change_that_must_be_on_the_record_is_one_commit_with_its_record(
    tmp_path: Path, method: str, path: str, body: dict[str, object]
) -> None:
    async with gateway_world(tmp_path) as world:
        world.gateway.fill = 0.93
        before = await world.log.bounds()
        async with world.session.request(method, world.url + path, json=body) as response:
            assert (response.status, response.headers["retry-after"]) == (507, "60")
        assert await world.log.bounds() == before
        world.gateway.fill = 0.91
        async with world.session.request(method, world.url + path, json=body) as response:
            assert response.status in (200, 201)
            status = response.status
        entry = await world.log.get(before[1] + 1)
        assert entry is not None
        change, noted = f.decode(entry.data).facts
        assert isinstance(change, f.KeyCreated | f.TenantSet) and isinstance(
            noted, f.AccessRecorded
        )
        (row,) = access_entry.unpack(noted.entries)
        assert (row.route, row.method, row.status, row.user) == (
            path if method == "POST" else "/v1/tenants/{name}",
            method,
            status,
            "tests",
        )


async def test_a_tenant_that_fills_the_log_is_slowed_and_another_is_not(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, stream_bytes=64 * MIB, tenant_bytes_per_minute=MIB) as world:
        for name in ("greedy", "quiet"):
            await world.ask("PUT", f"/v1/tenants/{name}", 201)
        async with (
            world.as_("member", "mallory", "greedy") as greedy,
            world.as_("member", "ada", "quiet") as quiet,
        ):
            taken = 0
            for _ in range(100):
                async with greedy.session.post(
                    world.url + "/v1/jobs", json={"command": ["true"], **BIG}
                ) as response:
                    if response.status == 429:
                        assert int(response.headers["retry-after"]) > 0
                        break
                    taken += 1
            assert 10 < taken < 20
            await quiet.submit(**BIG)
            job = (await greedy.ask("GET", "/v1/jobs"))["jobs"][0]["id"]
            await greedy.ask("POST", f"/v1/jobs/{job}/cancel", 202)
            await world.ask("PUT", "/v1/tenants/greedy", 200, json={"max_waiting": 1})


async def test_a_second_gateway_refuses_a_tenant_that_the_first_one_served(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, tenant_bytes_per_minute=MIB) as one:
        for _ in range(17):
            await one.submit(**BIG)
        stream = one.log.stream
        other = tmp_path / "other"
        other.mkdir()
        async with gateway_world(
            other, stream=stream, instance="b", tenant_bytes_per_minute=MIB
        ) as two:
            await two.ask(
                "POST", "/v1/jobs", 429, json={"command": ["true"], **BIG, "labels": {"more": "x"}}
            )


async def test_a_real_log_keeps_room_for_releases_whatever_is_submitted(tmp_path: Path) -> None:
    """Between two surveys a gateway counts what it folds, so that a burst does not pass
    the levels.
    """
    server = NatsServer(tmp_path)
    server.start()
    client = await connect([server.url], "test")
    bound = 8 * MIB
    await create_stream(client, 1, bound)
    settings = Settings(stream_bytes=bound, tenant_bytes_per_minute=1 << 30, instance="a")
    gateway = Gateway(
        log=JetStreamLog(client),
        bus=NatsBus(client),
        clock=SystemClock(),
        settings=settings,
        outputs=MemoryOutputs(),
        store=MemorySnapshots(),
        filled=lambda: filled_part(client),
    )
    running = asyncio.create_task(gateway.run())
    try:
        while not gateway.caught_up:
            await asyncio.sleep(0.01)
        with pytest.raises(Problem, match="submitted is accepted up to 80%"):
            for number in range(400):
                facts: tuple[AnyFact, ...] = (
                    f.JobSubmitted(
                        job_id=gateway.lookup.new_job_id(),
                        spec=spec(env={"N": str(number), **BIG["env"]}),
                    ),
                )
                await gateway.record(*facts)
        assert await filled_part(client) < 0.85
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await client.close()
        server.kill()


def test_a_full_log_is_trimmed_however_few_commits_fill_it() -> None:
    policy = Policy(keep_commits=100_000, keep_ns=1, full_percent=60)
    ahead = {"the scheduler": 1_000, "quota": 1_000, "the archive": 1_000}
    full = Standing(
        base=0,
        young=1,
        last=1_000,
        commits=1_000,
        bytes=64 * MIB,
        bytes_max=64 * MIB,
        readers=ahead,
    )
    assert 400 <= decide(policy, full).upto <= 900
