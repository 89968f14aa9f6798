"""Every query of the board returns data from a real Prometheus, which scrapes a real gateway and a
node that has every reading.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

from libs.common.facts import ModelUse
from libs.common.model import JobId, NodeId, TenantId
from libs.common.model_spec import ModelSpec
from libs.common.state.cluster import Model
from libs.embedded import servers
from services.api_gateway.control_plane.expiry import CertificateSeen
from services.node_agent.metrics.scraping import scraped
from tests.board_queries import queries
from tests.integration.gateway_world import KEY, World, gateway_world
from tests.integration.test_gateway_metrics import sign, watched
from tests.metrics_catalogue import node_text
from tests.prometheus import Prometheus, prometheus

DATA_S = 20.0
LOOK_S = 0.5
NS = 1_000_000_000


@contextlib.asynccontextmanager
async def served_node() -> AsyncIterator[int]:
    async def text() -> str:
        return node_text()

    (port,) = servers.free_ports(1)
    async with scraped("127.0.0.1", port, text):
        yield port


def give_values(world: World) -> None:
    """Give the gateway a model in use, a tenant with a budget, and a node that was lost."""
    telemetry, cluster = world.gateway.telemetry, world.gateway.cluster
    telemetry.models.began("m")
    telemetry.models.began("m")
    telemetry.models.ended("m", "/v1/chat/completions", 200, streamed=True, first_s=0.1)
    telemetry.models.ended("m", "/v1/chat/completions", 503, streamed=False, first_s=0.0)
    telemetry.usage.note(used())
    cluster.tenants[TenantId("default")].gpu_hours = 10
    cluster.nodes[NodeId("n1")].losses_ns = (1_700_000_000 * NS,)
    spec = ModelSpec(command=("serve",))
    cluster.models["m"] = Model("m", TenantId("default"), "ann", spec, seq=1, replicas=1)
    world.gateway.queues.of("m")
    vitals = world.gateway.pulse.vitals
    world.gateway.pulse.vitals = type(vitals)(1, {NodeId("n1"): 10}, 5, 80.0, 200.0)
    world.gateway.pulse.at_ns = world.gateway.clock.wall_ns()


def used() -> ModelUse:
    return ModelUse(
        tenant=TenantId("default"),
        user="ann",
        key_id="k",
        owner=TenantId("default"),
        model="m",
        job_id=JobId("j"),
        attempt=1,
        input_tokens=5,
        output_tokens=7,
        share_ms=1_000,
    )


async def without_data(found: Prometheus, expressions: dict[str, str]) -> dict[str, str]:
    return {name: each for name, each in expressions.items() if not await found.query(each)}


async def test_every_query_of_the_board_returns_data(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world, served_node() as node:
        await world.writers.begin_term()
        await world.writers.register("n1")
        await world.run_to("completed")
        await world.run_to("running")
        give_values(world)
        gateway = {
            "job_name": "muster-gateways",
            "authorization": {"credentials": KEY},
            "static_configs": [{"targets": [world.url.removeprefix("http://")]}],
        }
        nodes = {
            "job_name": "muster-nodes",
            "static_configs": [{"targets": [f"127.0.0.1:{node}"]}],
        }
        async with watched(world) as plane, prometheus(tmp_path / "p", [gateway, nodes]) as found:
            plane.certificates = [CertificateSeen("authority", "CN=a", 1_900_000_000 * NS)]
            for service in ("scheduler", "quota", "audit"):
                await sign(world, service, "a", leads=True)
            missing = queries()
            assert len(missing) > 50
            deadline = time.monotonic() + DATA_S
            while missing and time.monotonic() < deadline:
                await asyncio.sleep(LOOK_S)
                missing = await without_data(found, missing)
            assert missing == {}
