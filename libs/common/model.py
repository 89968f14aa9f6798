"""The words that facts, folds and services share: identities, what a job asks for, what a node has.

Pure. Quantities are integers in the unit that the name ends with; a share of a GPU is in hundredths
(100 = the whole device). A struct here is part of the log's format: it only ever gains fields with
defaults.
"""

import re
from typing import Final, NewType

import msgspec

JobId = NewType("JobId", str)
NodeId = NewType("NodeId", str)
GpuId = NewType("GpuId", str)
TenantId = NewType("TenantId", str)

WHOLE_GPU: Final = 100
# A whole GPU for an hour, in hundredths of a GPU times milliseconds, as usage is charged.
GPU_HOUR_SHARE_MS: Final = WHOLE_GPU * 3_600_000
# What a budget of GPU hours is for: the tenant's whole life, or each month of UTC.
PER_LIFE: Final = "life"
PER_MONTH: Final = "month"
PRIORITY_MAX: Final = 100
NODES_MAX: Final = 1024
GPUS_PER_NODE_MAX: Final = 64
# Devices of one job: one commit of the log records all of them.
DEVICES_MAX: Final = 16_384
# What a job may ask for when its node hears no scheduler any more.
STOP: Final = "stop"
CONTINUE: Final = "continue"
# The command of an allocation: it waits to be ended, and what is done there is done beside it
# (`muster exec`).
KEEPER: Final = ("sleep", "infinity")
# How the parts of one device are kept apart (`isolation`); one device never mixes them. "" = not at
# all.
MPS: Final = "mps"
MIG: Final = "mig"
TIME_SLICE: Final = "time_slice"
# What a node's agent says of itself (NodeRegistered.isolation) that knows images: others would run
# the command on the bare machine.
IMAGES: Final = "images"
ISOLATIONS: Final = ("", MPS, MIG, TIME_SLICE)
# What a job may say of each level of the topology: wait rather than cross it, cross it only where
# that cannot be avoided, ignore it.
REQUIRED: Final = "required"
PREFERRED: Final = "preferred"
NO_CARE: Final = "none"
LEVEL_WORDS: Final = (REQUIRED, PREFERRED, NO_CARE)
# From the narrowest to the widest: fields of JobSpec.
LEVELS: Final = ("interconnect", "switch", "numa", "socket", "rack", "spine")
ID_PATTERN: Final = re.compile(r"[a-z0-9-]{1,63}")


# What the replicas of a model are spread over.
SPREAD_NODE: Final = "node"
SPREAD_RACK: Final = "rack"
SPREAD_NONE: Final = "none"
SPREADS: Final = (SPREAD_NODE, SPREAD_RACK, SPREAD_NONE)


class Serve(msgspec.Struct, frozen=True):
    """What makes a job a replica of a model: it serves HTTP on the port that its placement gave it,
    and is ready while a GET of `health_path` answers 2xx.

    One that is not ready for `startup_timeout_s` is ended.

    A ready one is asked every `health_interval_s`, may take `health_timeout_s` to answer (0: the
    node's own setting), and is unready after so many `health_failures` in a row. `spread` says over
    what it keeps away from the model's other replicas, where it can
    (`services/scheduler/models/spread.py`).
    """

    model: str
    generation: int
    health_path: str = "/health"
    startup_timeout_s: int = 600
    spread: str = SPREAD_NODE
    health_interval_s: int = 5
    health_timeout_s: int = 0
    health_failures: int = 3


class Allocation(msgspec.Struct, frozen=True):
    """What makes a job an allocation: its devices are held for a person or another system for
    `expires_s` from its placement on, or longer when that is extended.

    `warn_s` before it is over, that is said.
    """

    expires_s: int
    warn_s: int = 300


class Array(msgspec.Struct, frozen=True):
    """What makes a job an array of many alike: the numbers of its elements, as (first, last, step),
    the smaller ones first; how many of them may be alive at a time (0: any number).

    Read by `arrays.py`.
    """

    ranges: tuple[tuple[int, int, int], ...]
    at_once: int = 0


class JobSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a job asks for.

    `gpus` counts devices per node, `gpu_share` is the part of each, in hundredths.

    `secrets` maps environment variables to names of its tenant's secrets: the values are never
    here. `upload` is the SHA-256 of an archive that its tenant has sent: unpacked on each node, it
    is the working directory. From `vendor` on it says where the job may run: an empty word, list or
    number means that it does not care, and a node that does not say what it has does not serve who
    asks for it. `model` is any of these; `gpu_memory_bytes` of each device takes the place of a
    share; `cpus_milli` and `memory_bytes` (of the host) are per node; all `node_labels` must be
    there; `gpu_uuids` are the only devices that serve; a job with one of the labels `anti_affinity`
    is never on the same node; `placement` is a strategy's name. With a `hang_timeout_s` it is ended
    as hung when it kept its devices busy for so long without any sign of progress.
    `scheduling_policy` is what the job counts on of its queue, as the gateway checked it. From
    `queue` on it says when: `deadline_ns` is of the wall clock, `estimate_s` how long it will run;
    it begins when each job of `after` has ended as its word says (`ordering.AFTER`), a `singleton`
    when no other one of its name and user is left, one on `hold` when somebody releases it. With a
    `reservation` it runs where and while that one is. An `array` is as many jobs. One that is
    `preemptible` makes room for jobs of higher priority (or of equal: `JobQueue.time_slice_s`) once
    it has run for `min_run_s`: it hears `checkpoint_signal`, has `checkpoint_grace_s` to save its
    work, and waits for its next attempt. With `nodes_max` it has from `nodes` to so many of them,
    each attempt as many as there are for it when it is placed; one that saves its work may be begun
    anew with more. With an `image` the command runs in a container of it.
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
    image: str = ""
    hang_timeout_s: int = 0

    @property
    def most_nodes(self) -> int:
        """An attempt never has more."""
        return max(self.nodes, self.nodes_max)

    @property
    def kind(self) -> str:
        """What it is for: a job that somebody submitted, a model's replica, or an allocation."""
        return (
            "replica"
            if self.serve is not None
            else "allocation"
            if self.allocation is not None
            else "job"
        )

    @property
    def ignores_lease(self) -> bool:
        """No silence ends it: its node may be held for lost and it may live."""
        return self.on_control_loss == CONTINUE


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's replicas are, each a job on one node.

    `{port}` in the command is the port that each is given.

    What JobSpec has too means what it means there, and is what each replica asks for
    (`model_view.replica_spec`).
    """

    command: tuple[str, ...]
    replicas: int = 1
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


class Replica(msgspec.Struct, frozen=True):
    """A replica to be made: a job of the scheduler's own, `<model>-<ordinal>`.

    The ids of users' jobs hold no hyphen.
    """

    job_id: JobId
    spec: JobSpec


class Gpu(msgspec.Struct, frozen=True):
    """One device as its node reports it. `index` is the vendor's own numbering on that node.

    `numa` is the node of host memory that it is nearest to, `switch` its PCIe switch, `links` its
    group of direct links (NVLink, XGMI). What is not known is empty, (0, 0) or -1, which is no
    place: two devices whose switch is not known are not behind one switch. `power_mw` and
    `clocks_mhz` are the least and the most that its power limit and its clocks can be set to.
    `mig_profiles` are the instances that it can be cut into now; with `mig` nothing but those can
    be used of it.
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
    """A promise of `share` hundredths of one device.

    Of a MIG instance also its profile and which of the device's memory slices it has, one bit each
    (`mig.py`).
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
    """(job, attempt): the fencing token of everything that is done for a job."""

    job_id: JobId
    attempt: int


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


class Timing(msgspec.Struct, frozen=True):
    """The cluster's clockwork, in milliseconds; a fact, never a process setting, so that both ends
    of a lease agree.
    """

    heartbeat_ms: int = 1_000
    lease_ms: int = 13_000
    margin_ms: int = 1_500
    term_ms: int = 3_000

    @property
    def silence_ms(self) -> int:
        """How long a node must be silent before it may be declared lost."""
        return self.lease_ms + self.margin_ms
