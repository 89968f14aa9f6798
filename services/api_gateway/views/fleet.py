"""The fleet as a map shows it: one compact row for each node, with its devices and their holders.

Pure. A row has only what a map draws; `views/nodes.py` shows nodes and devices in full. Tests:
tests/unit/test_fleet.py.
"""

import msgspec

from libs.common.life import node_life
from libs.common.model import WHOLE_GPU, attempt_of
from libs.common.state.cluster import Cluster, GpuView, Node, node_gpus
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.views.nodes import gpu_health, gpu_state


class FleetHolder(msgspec.Struct, omit_defaults=True):
    """A job that holds a share of a GPU, in hundredths.

    `profile` is its MIG instance; empty if it has none. A job of a tenant that the client may not
    see has `tenant` null and no other field but `share`.
    """

    tenant: str | None
    share: int
    job: str = ""
    user: str = ""
    name: str = ""
    profile: str = ""


class FleetGpu(msgspec.Struct):
    """A GPU on the map.

    `state` is one word for people, `free` the share that no job holds, in hundredths. With `mig`
    only MIG instances of the device can be used.
    """

    uuid: str
    index: int
    model: str
    state: str
    health: str
    service: str
    free: int
    mig: bool
    holders: list[FleetHolder]


class FleetNodeShown(msgspec.Struct):
    """A node on the map, with its GPUs by index."""

    id: str
    state: str
    rack: str
    gpus: list[FleetGpu]


def fleet_row(principal: Principal, cluster: Cluster, node: Node) -> FleetNodeShown:
    """Return the row of one node as the principal may see it."""
    gpus = [_gpu(principal, cluster, view) for view in node_gpus(cluster, node)]
    return FleetNodeShown(id=node.node_id, state=node.state, rack=node.rack, gpus=gpus)


def is_on_map(node: Node) -> bool:
    """Return whether the map has the node; removed nodes leave it."""
    return node.state != node_life.REMOVED


def _gpu(principal: Principal, cluster: Cluster, view: GpuView) -> FleetGpu:
    gpu = view.gpu
    return FleetGpu(
        uuid=gpu.uuid,
        index=gpu.index,
        model=gpu.model,
        state=gpu_state(cluster, view),
        health=gpu_health(view),
        service=view.service,
        free=max(0, WHOLE_GPU - view.held),
        mig=gpu.mig,
        holders=[
            _holder(principal, cluster, view, key=key, share=share)
            for key, share in view.holds.items()
        ],
    )


def _holder(
    principal: Principal, cluster: Cluster, view: GpuView, key: str, share: int
) -> FleetHolder:
    job_id = attempt_of(key).job_id
    job = cluster.jobs.get(job_id)
    if job is None or not roles.sees(principal, job.tenant):
        return FleetHolder(tenant=None, share=share)
    part = view.parts.get(key)
    return FleetHolder(
        tenant=job.tenant,
        share=share,
        job=job_id,
        user=job.user,
        name=job.spec.name,
        profile=part.mig_profile if part is not None else "",
    )
