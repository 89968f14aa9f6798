"""/v1/nodes/{node_id}/readings: what a node's devices read now: use, memory, power, temperature.

The node keeps its last sample only, so a page that draws lines asks again. A tenant gets the
devices of which its jobs hold a share. Tests: tests/integration/test_gateway_readings.py.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from libs.common.messages.sample_messages import DeviceReadings, ReadingsReport
from libs.common.messages.senders import readable
from libs.common.model import job_of
from libs.common.state.cluster import Cluster, Node
from libs.common.subjects import ask_node
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.access.slots import NODE
from services.api_gateway.http.nodes import known_node
from services.api_gateway.http.queries import Query, answer, documented, principal_of, settled
from services.api_gateway.http.routing import APIRouter
from services.api_gateway.times import rfc3339

router = APIRouter(tags=["nodes"])

_report = msgspec.msgpack.Decoder(ReadingsReport)


class ReadingsShown(msgspec.Struct):
    """The last readings of the devices that the principal may see; null for what is unknown."""

    uuid: str
    busy_percent: int | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_mw: int | None
    temperature_c: int | None
    clock_mhz: int | None
    stale: bool
    simulated: bool


class NodeReadings(msgspec.Struct):
    node_id: str
    at: str | None
    readings: list[ReadingsShown]


@router.get("/v1/nodes/{node_id}/readings", openapi_extra=documented(Query))
async def show_readings(request: Request, node_id: str) -> Response:
    """Return the last readings of a node's devices, from the node."""
    gateway, _ = await settled(request, Query)
    node = known_node(gateway, node_id)
    async with gateway.slots.of(NODE, principal_of(request).tenant):
        found = await gateway.bus.request(
            ask_node(node.node_id, "readings"), b"", gateway.settings.ask_ms / 1_000
        )
    report = readable(_report, found, node.node_id)
    principal, cluster = principal_of(request), gateway.cluster
    return answer(
        NodeReadings(
            node_id=node.node_id,
            at=rfc3339(gateway.clock.wall_ns()),
            readings=[
                _shown(device)
                for device in report.devices
                if _sees(principal, cluster, node, device)
            ],
        )
    )


def _sees(principal: Principal, cluster: Cluster, node: Node, device: DeviceReadings) -> bool:
    """Return whether the principal may see the readings: the use of a device tells of its jobs."""
    view = cluster.gpus.get(device.uuid)
    if view is None or view.node_id != node.node_id:
        return False
    if roles.sees_all(principal):
        return True
    jobs = [cluster.jobs.get(job_of(key)) for key in view.holds]
    return any(job is not None and roles.sees(principal, job.tenant) for job in jobs)


def _shown(device: DeviceReadings) -> ReadingsShown:
    def known(value: int) -> int | None:
        return value if value >= 0 else None

    return ReadingsShown(
        uuid=device.uuid,
        busy_percent=known(device.busy_percent),
        memory_used_bytes=known(device.memory_used_bytes),
        memory_total_bytes=known(device.memory_total_bytes),
        power_mw=known(device.power_mw),
        temperature_c=known(device.temperature_c),
        clock_mhz=known(device.clock_mhz),
        stale=device.stale,
        simulated=device.simulated,
    )
