"""The client against a whole embedded cluster: models, allocations, secrets, usage, nodes; and a
gateway that is older or newer.
"""

import json
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from libs.client.asynchronous.client import AsyncClient
from libs.client.errors import Conflict, InvalidRequest, NotFound
from services.api_gateway.views.jobs import JobShown
from tests.integration.client_world import ClientWorld, client_world
from tests.tidy import ROOT

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

WAIT_S = 60.0
SERVER = [sys.executable, str(ROOT / "examples" / "model_server.py"), "--port", "{port}"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClientWorld]:
    async with client_world(tmp_path_factory.mktemp("resources"), nodes=2) as made:
        yield made


async def test_a_model_is_deployed_scaled_and_undeployed(world: ClientWorld) -> None:
    models = world.client.models
    shown = models.deploy("tiny", SERVER, replicas=1, gpus=1)
    assert (shown.name, shown.wanted) == ("tiny", 1)
    with pytest.raises(Conflict):
        models.deploy("tiny", SERVER)
    assert models.wait_ready("tiny", timeout_s=WAIT_S).replicas[0].ready
    assert models.scale("tiny", 2).wanted == 2
    assert models.wait_ready("tiny", replicas=2, timeout_s=WAIT_S).ready == 2
    assert [each.name for each in models.list()] == ["tiny"]
    assert models.redeploy("tiny", labels={"a": "b"}).generation == 2
    assert models.why("tiny").answer
    assert models.undeploy("tiny").state
    with pytest.raises(NotFound):
        models.get("absent")
    with pytest.raises(InvalidRequest) as found:
        models.deploy("other", SERVER, replicas=-1)
    assert found.value.field == "replicas"


async def test_devices_are_held_extended_and_released(world: ClientWorld) -> None:
    allocations = world.client.allocations
    made = allocations.create(gpus=1, expires="1h", labels={"team": "a"})
    held = allocations.wait_held(made.id, timeout_s=WAIT_S)
    assert held.nodes[0].gpus[0].uuid and held.nodes[0].env
    (hold,) = allocations.list(job=made.id)
    assert hold.gpu_uuid == held.nodes[0].gpus[0].uuid
    assert (allocations.extend(made.id, "1h").expires_at or "") > (held.expires_at or "")
    assert allocations.release(made.id).id == made.id
    assert world.client.jobs.wait(made.id, timeout_s=WAIT_S).reason == "released"
    with pytest.raises(InvalidRequest) as found:
        allocations.create(gpus=1, expires="soon")
    assert found.value.field == "expires"


async def test_a_secret_reaches_a_job_and_is_never_shown(world: ClientWorld) -> None:
    secrets = world.client.secrets
    assert secrets.set("token", "s3cr3t").version == 1
    assert [each.name for each in secrets.list()] == ["token"]
    job = world.client.jobs.submit(["sh", "-c", "echo ${#TOKEN}"], secrets={"TOKEN": "token"})
    job.wait(timeout_s=WAIT_S, check=True)
    assert list(job.logs()) == ["6"]
    secrets.remove("token")
    with pytest.raises(NotFound):
        secrets.remove("token")


async def test_the_use_of_a_job_is_on_the_bill(world: ClientWorld) -> None:
    job = world.client.jobs.submit(["sleep", "0.2"], gpus=2).wait(timeout_s=WAIT_S, check=True)
    assert job.state == "completed"
    for _ in range(100):
        lines = world.client.usage.get(since="1h", by=["tenant"]).usage
        if any(line.share_ms for line in lines):
            break
    assert sum(line.gpu_seconds for line in lines) > 0
    with pytest.raises(InvalidRequest) as found:
        world.client.usage.get(by=["colour"])
    assert found.value.field == "by"


async def test_nodes_are_read_drained_and_brought_back(world: ClientWorld) -> None:
    nodes = world.client.nodes
    assert sorted(node.id for node in nodes.list()) == ["node-1", "node-2"]
    assert len(list(nodes.gpus(node="node-1"))) == 2
    assert len(nodes.drain("node-1").gpus) == 2
    assert nodes.offline("node-1").node.id == "node-1"
    assert nodes.online("node-1").node.id == "node-1"
    assert nodes.get("node-2").node.state == "healthy"


Change = Callable[[Any], Any]


# Members that objects have, unlike maps such as labels.
OF_OBJECTS = {"id", "node_id", "seq", "state", "kind", "role"}


def newer(value: Any) -> Any:
    """An answer with fields that this client does not know, at every depth."""
    if isinstance(value, dict):
        more = {"of_tomorrow": [1, {}]} if OF_OBJECTS & value.keys() else {}
        return {**{name: newer(each) for name, each in value.items()}, **more}
    return [newer(each) for each in value] if isinstance(value, list) else value


LATER = [field.name for field in msgspec.structs.fields(JobShown) if not field.required]


def older(value: Any) -> Any:
    """An answer without the fields that were added later: they have defaults."""
    if isinstance(value, dict):
        return {name: older(each) for name, each in value.items() if name not in LATER}
    return [older(each) for each in value] if isinstance(value, list) else value


async def proxied(world: ClientWorld, change: Change) -> tuple[web.AppRunner, str]:
    """A proxy in front of the cluster's gateway that changes every JSON answer."""

    async def forward(request: web.Request) -> web.Response:
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                request.method,
                world.client.url + request.path_qs,
                data=await request.read(),
                headers={
                    name: value
                    for name, value in request.headers.items()
                    if name.lower() in ("authorization", "content-type", "idempotency-key")
                },
            ) as answer,
        ):
            body = await answer.read()
            if "json" in answer.content_type:
                body = json.dumps(change(json.loads(body))).encode()
            return web.Response(body=body, status=answer.status, content_type=answer.content_type)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    return runner, f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("change", [newer, older], ids=["newer", "older"])
async def test_the_client_works_with_a_gateway_of_another_version(
    world: ClientWorld, change: Change
) -> None:
    assert {"refusals", "preflight", "image"} <= set(LATER)
    runner, url = await proxied(world, change)
    key = json.loads(world.profile.read_text())["key"]
    try:
        async with AsyncClient(url, key=key) as client:
            job = await client.jobs.submit(["sh", "-c", "echo hi"], gpus=1)
            await job.wait(timeout_s=WAIT_S, check=True)
            assert [line async for line in job.logs()] == ["hi"]
            assert job.shown.image == "" and job.shown.members[0].state
            assert "job.submitted" in [event.kind async for event in job.events()]
            assert await (await client.functions.call(max, [1, 2])).result(timeout_s=WAIT_S) == 2
            assert [node.state async for node in client.nodes.list()] == ["healthy"] * 2
            assert (await client.whoami()).role == "admin"
            with pytest.raises(InvalidRequest) as found:
                await client.jobs.submit("true", nodes=0)
            assert found.value.field == "nodes"
    finally:
        await runner.cleanup()
