"""The types that facts, folds and services share: identities, job specifications, devices.

Pure. Quantities are integers in the unit at the end of their name. A share of a GPU is in
hundredths (100 = the whole device). The structs are part of the log's format: they only gain fields
with defaults.
"""

import re
from typing import Final, NewType

import msgspec

from libs.common.container_spec import ContainerSpec

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
GpuId = NewType("GpuId", str)
TenantId = NewType("TenantId", str)

WHOLE_GPU: Final = 100
# A whole GPU for an hour, in hundredths of a GPU times milliseconds, as usage is charged.
GPU_HOUR_SHARE_MS: Final = WHOLE_GPU * 3_600_000
# The period of a budget of GPU hours: the tenant's whole life, or each month of UTC.
PER_LIFE: Final = "life"
PER_MONTH: Final = "month"
PRIORITY_MAX: Final = 100
NODES_MAX: Final = 1024
# Jobs of one `POST /v1/jobs:batch`.
BATCH_JOBS_MAX: Final = 100
GPUS_PER_NODE_MAX: Final = 64
# Sizes that a job may ask for. The memory broker grants in steps of a device's granularity, which
# is 2 MiB on today's devices.
BYTES_MAX: Final = 1 << 50
POOL_BYTES_MIN: Final = 2 << 20
# Largest number of devices of one job, because one commit records all of them.
DEVICES_MAX: Final = 16_384
# Values of `on_control_loss`: what happens to a job when its node's lease ends.
STOP: Final = "stop"
CONTINUE: Final = "continue"
# The command of an allocation: it only waits. Users run theirs beside it (`muster exec`).
KEEPER: Final = ("sleep", "infinity")
# Values of `isolation`: how the fractions of one device are separated; empty: not at all. One
# device has fractions of one kind only.
MPS: Final = "mps"
MIG: Final = "mig"
TIME_SLICE: Final = "time_slice"
# Keys of NodeRegistered.isolation: the agent supports images (older ones would run the command
# without a container), memory pools, and weights that stay on devices between replicas.
IMAGES: Final = "images"
POOLS: Final = "pools"
SHORT_ARRAYS: Final = "short_arrays"
WEIGHTS: Final = "weights"
ISOLATIONS: Final = ("", MPS, MIG, TIME_SLICE)
# Preferences of a job for each level of the topology: wait rather than cross it, cross it only if
# necessary, ignore it.
REQUIRED: Final = "required"
PREFERRED: Final = "preferred"
NO_CARE: Final = "none"
LEVEL_WORDS: Final = (REQUIRED, PREFERRED, NO_CARE)
# Fields of JobSpec, from the narrowest level to the widest.
LEVELS: Final = ("interconnect", "switch", "numa", "socket", "rack", "spine")
ID_PATTERN: Final = re.compile(r"[a-z0-9-]{1,63}")
# Values of `spread`: the replicas of a model are spread over nodes, over racks, or not at all.
SPREAD_NODE: Final = "node"
SPREAD_RACK: Final = "rack"
SPREAD_NONE: Final = "none"
SPREADS: Final = (SPREAD_NODE, SPREAD_RACK, SPREAD_NONE)
# The standby of a replica serves on a port so far below the replica's own. The scheduler gives out
# as many ports (services/scheduler/state/ports.py), so no other replica of the node has it.
STANDBY_STEP: Final = 3_268


class Serve(msgspec.Struct, frozen=True):
    """Marks a job as a replica of a model.

    A replica serves HTTP on the port of its placement, and is ready while a GET of `health_path`
    returns 2xx. The agent ends a replica that is not ready after `startup_timeout_s`. It probes a
    ready replica every `health_interval_s`, with a timeout of `health_timeout_s` (0: the agent's
    setting), and reports it unready after `health_failures` failed probes in a row. `spread` keeps
    replicas on different nodes or racks where possible (`services/scheduler/models/spread.py`).
    With `standby` a second engine may wait on the same devices, on `standby_port`. With
    `device_weights` the node offers weights that stay on its devices, before the replica starts.
    `served_name` is the model's name at the replica's server (empty: `model`).

    `keyed`: each attempt has a key of its own, which gateways send and which stands for `{key}` in
    its environment. `hosted`: the node's address stands for `{host}` in its command.
    """

    model: str
    generation: int
    health_path: str = "/health"
    startup_timeout_s: int = 600
    spread: str = SPREAD_NODE
    health_interval_s: int = 5
    health_timeout_s: int = 0
    health_failures: int = 3
    standby: bool = False
    device_weights: bool = False
    served_name: str = ""
    keyed: bool = False
    hosted: bool = False


class Allocation(msgspec.Struct, frozen=True):
    """Marks a job as an allocation: it holds devices for a person or another system.

    It ends `expires_s` after its placement, or later if it is extended. The scheduler warns
    `warn_s` before the end.
    """

    expires_s: int
    warn_s: int = 300


class Array(msgspec.Struct, frozen=True):
    """Marks a job as an array of similar jobs.

    `ranges` are the numbers of its elements as (first, last, step), in ascending order. `at_once`
    is the largest number of live elements; 0: no limit. Functions on arrays are in `arrays.py`.
    Elements of a `short` array are no jobs: each job of it is a batch of elements, which its
    supervisor runs one after the other.
    """

    ranges: tuple[tuple[int, int, int], ...]
    at_once: int = 0
    short: bool = False


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A job's command and the resources that it requests.

    `gpus` is the number of devices per node, `gpu_share` the fraction of each in hundredths.
    `secrets` maps environment variables to names of the tenant's secrets; the values are never
    here. `upload` is the SHA-256 of an archive of the tenant: each node unpacks it as the working
    directory. With an `image` the command runs in a container, as `container` says. A job with a
    `hang_timeout_s` is ended as hung if its devices were busy for that time without any sign of
    progress.

    The fields from `vendor` on say where the job may run. Empty or 0 means no preference. A node
    that does not report a property cannot serve a job that requests it. `model` lists accepted
    models. `gpu_memory_bytes` of each device replaces a share. `cpus_milli` and `memory_bytes` (of
    the host) are per node. The memory broker may grant the job `pool_bytes` of each device, inside
    its part of it, and `host_pool_bytes` of each node, beside `memory_bytes`. The node must have
    all `node_labels`. `gpu_uuids` are the only accepted devices. The job never shares a node with
    jobs that have a label of `anti_affinity`. `placement` names a strategy. `scheduling_policy` is
    the guarantee that its queue must provide; the gateway checks it.

    The fields from `queue` on say when it runs. `deadline_ns` is a time of the wall clock,
    `estimate_s` the expected run time. The job waits until each job of `after` has ended as its
    word says (`ordering.AFTER`); a `singleton` waits for earlier jobs of the same name and user,
    a job on `hold` until it is released. With a `reservation` it runs only inside that one. An
    `array` stands for many jobs.

    A `preemptible` job makes room for jobs of higher priority (or of equal priority, with
    `JobQueue.time_slice_s`) once it has run for `min_run_s`. It receives `checkpoint_signal`, has
    `checkpoint_grace_s` to save its work, and waits for its next attempt. With `nodes_max` an
    attempt has between `nodes` and `nodes_max` nodes, as many as are free when it is placed; a job
    that saves its work may be restarted with more. `preflight` measures a gang's links first.
    """

    command: tuple[str, ...]
    name: str = ""
    workdir: str = ""
    env: dict[str, str] = {}
    nodes: int = 1
    gpus: int = 1
    gpu_share: int = WHOLE_GPU
    priority: int = 50
    time_limit_s: int = 0
    start_s: int = 30
    grace_s: int = 10
    retries: int = 0
    requeue: bool = True
    stdin: bool = False
    labels: dict[str, str] = {}
    output_limit_bytes: int = 64 << 20
    reject_if_impossible: bool = False
    on_control_loss: str = STOP
    serve: Serve | None = None
    allocation: Allocation | None = None
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
    rack: str = PREFERRED
    spine: str = PREFERRED
    allow_cross_numa: bool = True
    placement: str = ""
    mixed: bool = False
    scheduling_policy: str = ""
    queue: str = ""
    deadline_ns: int = 0
    estimate_s: int = 0
    after: tuple[tuple[str, JobId], ...] = ()
    singleton: bool = False
    hold: bool = False
    reservation: str = ""
    array: Array | None = None
    preemptible: bool = False
    checkpoint_grace_s: int = 0
    checkpoint_signal: int = 15
    min_run_s: int = 0
    nodes_max: int = 0
    preflight: bool = False
    image: str = ""
    hang_timeout_s: int = 0
    container: ContainerSpec | None = None

    @property
    def most_nodes(self) -> int:
        """The largest number of nodes of an attempt."""
        return max(self.nodes, self.nodes_max)

    @property
    def host_bytes(self) -> int:
        """Host memory on each node: the job's own and its host pool."""
        return self.memory_bytes + self.host_pool_bytes

    @property
    def uses_host(self) -> bool:
        """True if the job asks for CPUs, memory or pools of its nodes."""
        return bool(self.cpus_milli or self.memory_bytes or self.pool_bytes or self.host_pool_bytes)

    @property
    def pools_on_node_bytes(self) -> int:
        """All that the memory broker of one node may grant to an attempt."""
        return self.gpus * self.pool_bytes + self.host_pool_bytes

    @property
    def kind(self) -> str:
        """The kind of job: job, replica or allocation."""
        if self.serve is not None:
            return "replica"
        return "allocation" if self.allocation is not None else "job"

    @property
    def ignores_lease(self) -> bool:
        """True if the job runs on when its node's lease ends. It may live on a lost node."""
        return self.on_control_loss == CONTINUE


class Gpu(msgspec.Struct, frozen=True):
    """One device as its node reports it.

    `index` is the vendor's number of the device on that node. `numa` is the nearest NUMA node,
    `switch` the PCIe switch, `links` the group of direct links (NVLink, XGMI). Unknown values are
    empty, (0, 0) or -1; two devices with unknown switches are not behind one switch. `power_mw` and
    `clocks_mhz` are the smallest and largest values that the power limit and the clocks can have.
    `mig_profiles` are the instances that the device can be divided into now. With `mig` only such
    instances can be used.
    """

    uuid: GpuId
    index: int
    vendor: str
    model: str
    memory_bytes: int
    compute_capability: tuple[int, int] = (0, 0)
    pci_bus: str = ""
    numa: int = -1
    switch: str = ""
    links: str = ""
    mig_profiles: tuple[str, ...] = ()
    power_mw: tuple[int, int] = (0, 0)
    clocks_mhz: tuple[int, int] = (0, 0)
    mig: bool = False


class GpuHold(msgspec.Struct, frozen=True):
    """A member's hold on `share` hundredths of one device.

    For a MIG instance also its profile and its memory slices, one bit each (`mig.py`).
    """

    uuid: GpuId
    share: int = WHOLE_GPU
    isolation: str = ""
    mig_profile: str = ""
    mig_slices: int = 0


class Member(msgspec.Struct, frozen=True):
    """One node's part of an attempt.

    A placement names the incarnation of the node that it was decided for.
    """

    node_id: NodeId
    incarnation: int
    rank: int
    gpus: tuple[GpuHold, ...]


class AttemptRef(msgspec.Struct, frozen=True, order=True):
    """A job's attempt: the fencing token of every action for the job."""

    job_id: JobId
    attempt: int


def standby_port(port: int) -> int:
    """Return the second port of a replica: of its standby, or MASTER_PORT if it has several
    nodes.
    """
    return port - STANDBY_STEP


def attempt_key(job_id: str, attempt: int) -> str:
    """Return the text form of an attempt, as ledgers and directories use it."""
    return f"{job_id}.{attempt}"


def attempt_of(key: str) -> AttemptRef:
    """Return the attempt that `attempt_key` wrote as this text."""
    job_id, _, attempt = key.rpartition(".")
    return AttemptRef(JobId(job_id), int(attempt))


def job_of(key: str) -> JobId:
    """Return the job of an attempt that `attempt_key` wrote as this text."""
    return JobId(key.rpartition(".")[0])


def life_id(life: int, restore_id: str) -> str:
    """Return the text that tells a life of the cluster from every other.

    It is empty before the first restore. A restore by an earlier release has no id.
    """
    if not life:
        return ""
    return f"{life}-{restore_id}" if restore_id else str(life)
