"""The specification of a model's replicas, and a replica to create.

Pure. The structs are part of the log's format: they only gain fields with defaults.
"""

import msgspec

from libs.common.adapters import AdapterRules
from libs.common.batching import Batching
from libs.common.container_spec import ContainerSpec
from libs.common.model import PREFERRED, SPREAD_NODE, WHOLE_GPU, GpuId, JobId, JobSpec, NodeId
from libs.common.scaling_targets import ScalingTargets


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The specification of a model's replicas; each is a job on `nodes` nodes, one of which
    answers.

    With `scaling`, `replicas` is the number to begin with. `command` and `env` may hold the
    placeholders of `placeholders.py`. The server knows the model as `served_name` (empty: by its
    name). With `batching` the gateway joins requests; `adapters` allows LoRA adapters. With
    `continues_streams` a stream whose replica died goes on at another one. Fields of JobSpec too
    apply to each replica (`model_view.replica_spec`).
    """

    command: tuple[str, ...]
    replicas: int = 1
    nodes: int = 1
    workdir: str = ""
    env: dict[str, str] = {}
    gpus: int = 1
    gpu_share: int = WHOLE_GPU
    priority: int = 50
    health_path: str = "/health"
    startup_timeout_s: int = 600
    start_s: int = 30
    grace_s: int = 10
    labels: dict[str, str] = {}
    output_limit_bytes: int = 64 << 20
    secrets: dict[str, str] = {}
    upload: str = ""
    vendor: str = ""
    model: tuple[str, ...] = ()
    gpu_memory_bytes: int = 0
    memory_total_min_bytes: int = 0
    compute_capability_min: tuple[int, int] = (0, 0)
    cpus_milli: int = 0
    memory_bytes: int = 0
    pool_bytes: int = 0
    host_pool_bytes: int = 0
    mig_profile: str = ""
    isolation: str = ""
    node_labels: dict[str, str] = {}
    node_list: tuple[NodeId, ...] = ()
    gpu_uuids: tuple[GpuId, ...] = ()
    anti_affinity: dict[str, str] = {}
    interconnect: str = PREFERRED
    switch: str = PREFERRED
    numa: str = PREFERRED
    socket: str = PREFERRED
    allow_cross_numa: bool = True
    placement: str = ""
    spread: str = SPREAD_NODE
    health_interval_s: int = 5
    health_timeout_s: int = 0
    health_failures: int = 3
    image: str = ""
    container: ContainerSpec | None = None
    scaling: ScalingTargets | None = None
    served_name: str = ""
    batching: Batching | None = None
    adapters: AdapterRules | None = None
    continues_streams: bool = False


class Replica(msgspec.Struct, frozen=True):
    """A replica to create: a job of the scheduler with the id `<model>-<ordinal>`.

    Ids of users' jobs contain no hyphen.
    """

    job_id: JobId
    spec: JobSpec
