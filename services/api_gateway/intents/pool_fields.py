"""Fields of a request about memory pools: what the node's memory broker may grant to the job.

Pure. What no device or node of the cluster could ever give is refused with the figures. What is
free is the scheduler's question. Tests: tests/unit/test_pool_fields.py.
"""

from collections.abc import Mapping
from typing import Any, Final

from libs.common.errors import Refused
from libs.common.model import POOL_BYTES_MIN, WHOLE_GPU, JobSpec
from libs.common.state.cluster import Cluster

# Fields of JobSpec, by the names that users write.
NAMES: Final = {"pool": "pool_bytes", "host_pool": "host_pool_bytes"}


def refuse_zero(values: Mapping[str, Any]) -> None:
    """Raise Refused for a pool of zero bytes in a new request. A redeployment removes one so."""
    for alias, name in NAMES.items():
        for written in (alias, name):
            value = values.get(written, 1)
            if value == 0 and not isinstance(value, bool):
                raise Refused(f"{written}: 0 is no pool: leave it out, or give at least 2MiB")


def check(spec: JobSpec) -> None:
    """Check the pools against the request itself. Raises Refused."""
    for alias, name in NAMES.items():
        size = getattr(spec, name)
        if 0 < size < POOL_BYTES_MIN:
            raise Refused(
                f"{alias}: {size} bytes are too few: give at least {POOL_BYTES_MIN} (2MiB), the "
                "step in which memory is granted"
            )
    if not spec.pool_bytes:
        return
    if spec.gpus == 0:
        raise Refused(
            "pool: the job asks for no GPU, and a pool is memory of each of its GPUs: ask for at "
            "least 1 GPU, or give host_pool"
        )
    if spec.mig_profile:
        raise Refused(
            "pool: the memory broker cannot grant memory of MIG instances: leave pool or "
            "mig_profile out"
        )
    if 0 < spec.gpu_memory_bytes < spec.pool_bytes:
        raise Refused(
            f"pool: {spec.pool_bytes} bytes are more than gpu_memory, which is "
            f"{spec.gpu_memory_bytes} bytes, and the pool lies inside it: ask for a smaller pool "
            "or for more gpu_memory"
        )


def check_cluster(cluster: Cluster, spec: JobSpec) -> None:
    """Raise Refused for a pool that no device or node of the cluster could ever contain.

    A cluster without devices or nodes refuses nothing: they may join later.
    """
    largest = 0
    if spec.pool_bytes:
        views = cluster.gpus.values()
        largest = max((view.gpu.memory_bytes for view in views if view.present), default=0)
    part = spec.gpu_memory_bytes or largest * spec.gpu_share // WHOLE_GPU
    if largest and spec.pool_bytes > min(part, largest):
        share = f", and {spec.gpu_share} % of it are {part}" if part < largest else ""
        raise Refused(
            f"pool: {spec.pool_bytes} bytes fit on no GPU: the largest has {largest} bytes{share}: "
            "ask for a smaller pool, or for a larger part of the GPU"
        )
    if spec.host_pool_bytes:
        most = max((node.memory_bytes for node in cluster.nodes.values()), default=0)
        if 0 < most < spec.host_bytes:
            raise Refused(
                f"host_pool: {spec.host_pool_bytes} bytes and {spec.memory_bytes} bytes of memory "
                f"fit on no node: the largest has {most} bytes: ask for less"
            )
