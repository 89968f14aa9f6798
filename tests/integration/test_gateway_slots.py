"""A tenant's requests to nodes wait for each other, and not for those of another tenant."""

import asyncio
from pathlib import Path

import pytest

from libs.common import facts as f
from libs.common import subjects
from libs.common.model import JobId
from services.api_gateway.access.slots import INPUT, MOST, NODE, NODES
from tests.integration.gateway_world import World, gateway_world

TRACE = "1-0123456789abcdef"
ASKING = [
    (NODES, "trace", "POST", "/v1/jobs/{id}/traces", {"duration_s": 1}),
    (NODES, "trace", "GET", "/v1/jobs/{id}/traces", None),
    (NODES, "trace", "GET", f"/v1/jobs/{{id}}/traces/{TRACE}", None),
    (NODES, "trace", "GET", f"/v1/jobs/{{id}}/traces/{TRACE}/file", None),
    (NODE, "link", "POST", "/v1/jobs/{id}/copies", {"to_node": "n1", "to_job": "{id}"}),
    (NODE, "copy", "GET", "/v1/jobs/{id}/copies/n1.0123456789abcdef", None),
    (NODE, "pulled", "DELETE", "/v1/pulled/n1?repository=org/name", None),
    (INPUT, "stdin", "PUT", "/v1/jobs/{id}/stdin", None),
]


class SlowNode:
    """A node that answers no request to one of its services until `end` is set."""

    def __init__(self) -> None:
        self.open = self.most = 0
        self.end = asyncio.Event()

    async def answer(self, subject: str, data: bytes) -> bytes:
        self.open += 1
        self.most = max(self.most, self.open)
        await self.end.wait()
        self.open -= 1
        return b""

    async def reached(self, count: int) -> None:
        async with asyncio.timeout(10):
            while self.open < count:
                await asyncio.sleep(0.01)


async def send(world: World, method: str, path: str, body: object) -> None:
    async with world.session.request(method, world.url + path, json=body) as response:
        await response.read()


@pytest.mark.parametrize(("kind", "verb", "method", "path", "body"), ASKING)
async def test_a_tenants_requests_to_nodes_are_bounded(
    tmp_path: Path, kind: str, verb: str, method: str, path: str, body: dict[str, object] | None
) -> None:
    async with gateway_world(tmp_path, stdin_ms=30_000, ask_ms=30_000) as world:
        await world.writers.begin_term()
        node = SlowNode()
        for name in ("n1", "n2"):
            await world.writers.register(name, link_address="127.0.0.1:1")
            await world.bus.subscribe(subjects.ask_node(name, verb), node.answer, concurrent=True)
        await world.ask("PUT", "/v1/tenants/other", 201, json={})
        async with world.as_("member", "ann", "other") as other:
            asks = []
            for name, asker, count in (("n1", world, MOST[kind] + 3), ("n2", other, 1)):
                job_id = (await asker.submit(stdin=True))["id"]
                await world.writers.queue(job_id)
                await world.writers.place(job_id, name)
                await world.writers.start(job_id, name)
                await world.settle()
                filled = body and {
                    name: job_id if value == "{id}" else value for name, value in body.items()
                }
                where = path.format(id=job_id)
                asks += [
                    asyncio.create_task(send(asker, method, where, filled)) for _ in range(count)
                ]
                await node.reached(MOST[kind] + (asker is other))
                await asyncio.sleep(0.1)
            assert node.open == MOST[kind] + 1
            node.end.set()
            await asyncio.gather(*asks)
        assert node.most == MOST[kind] + 1
        assert not world.gateway.slots._of


async def running_job(world: World, node: str) -> str:
    return await world.run_to("running", node, stdin=True, retries=1)


async def test_input_that_a_job_does_not_read_delays_no_other_job_of_its_tenant(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path, stdin_ms=30_000) as world:
        await world.writers.begin_term()
        node = SlowNode()
        asks = []
        for name in ("n1", "n2", "n3", "n4"):
            await world.writers.register(name)
            subject = subjects.ask_node(name, "stdin")
            await world.bus.subscribe(subject, node.answer, concurrent=True)
            where = f"/v1/jobs/{await running_job(world, name)}/stdin"
            asks += [
                asyncio.create_task(send(world, "PUT", where, None)) for _ in range(MOST[INPUT] + 1)
            ]
        await node.reached(4 * MOST[INPUT])
        node.end.set()
        await asyncio.gather(*asks)


@pytest.mark.parametrize(("is_placed", "status"), [(False, 425), (True, 409)])
async def test_input_that_waited_while_its_job_was_requeued_is_refused(
    tmp_path: Path, is_placed: bool, status: int
) -> None:
    async with gateway_world(tmp_path, stdin_ms=30_000) as world:
        await world.writers.begin_term()
        node = SlowNode()
        await world.writers.register("n1")
        await world.bus.subscribe(subjects.ask_node("n1", "stdin"), node.answer, concurrent=True)
        job_id = await running_job(world, "n1")
        where = f"/v1/jobs/{job_id}/stdin"
        first = [asyncio.create_task(send(world, "PUT", where, None)) for _ in range(MOST[INPUT])]
        await node.reached(MOST[INPUT])
        late = asyncio.create_task(world.ask("PUT", where, status, data=b"x"))
        async with asyncio.timeout(10):
            while world.gateway.slots._users[INPUT, job_id] < MOST[INPUT] + 1:
                await asyncio.sleep(0.01)
        await world.writers.finish(job_id, "n1", exit_code=1)
        requeued = f.JobRequeued(job_id=JobId(job_id), attempt=1, reason="failed", counted=True)
        await world.writers.schedule(requeued)
        if is_placed:
            await world.writers.place(job_id, "n1", attempt=2)
        await world.settle()
        node.end.set()
        problem = await late
        assert node.most == MOST[INPUT]
        assert problem.get("attempt", 2) == 2
        await asyncio.gather(*first)


async def test_input_that_waited_does_not_go_to_a_newer_job_of_the_name(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, stdin_ms=30_000) as world:
        await world.writers.begin_term()
        nodes = [SlowNode(), SlowNode()]
        for name, node in zip(("n1", "n2"), nodes, strict=True):
            await world.writers.register(name)
            await world.bus.subscribe(
                subjects.ask_node(name, "stdin"), node.answer, concurrent=True
            )
        older = await world.run_to("running", "n1", stdin=True, name="train")
        where = "/v1/jobs/train/stdin"
        asks = [
            asyncio.create_task(send(world, "PUT", where, None)) for _ in range(MOST[INPUT] + 1)
        ]
        async with asyncio.timeout(10):
            while world.gateway.slots._users.get((INPUT, JobId(older)), 0) < MOST[INPUT] + 1:
                await asyncio.sleep(0.01)
        await world.run_to("running", "n2", stdin=True, name="train")
        for node in nodes:
            node.end.set()
        await asyncio.gather(*asks)
        assert (nodes[0].most, nodes[1].most) == (MOST[INPUT], 0)
