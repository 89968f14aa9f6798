"""What each route answers, as types: one table, from which the OpenAPI document is made and to
which schemathesis holds the real gateway.

A list is its rows under their name, `next` (what to give as `after` for the following page; null at
the end) and `seq`, the last commit that the answer has seen. tests/unit/test_openapi.py holds that
every route has a row.
"""

import types
from typing import Any, Final, NamedTuple

import msgspec

from libs.common.devices.topology import Topology
from libs.common.model import JobSpec
from libs.common.state.inventory import Inventory
from services.api_gateway.access.roles import Principal
from services.api_gateway.intents.secret_intents import SecretShown
from services.api_gateway.views.allocations import AllocationShown, HoldShown
from services.api_gateway.views.identity import AccessShown, KeyShown, TenantShown
from services.api_gateway.views.jobs import JobShown
from services.api_gateway.views.models import ModelShown
from services.api_gateway.views.nodes import GpuFull, NodeFull, NodeShown
from services.api_gateway.views.queues import QueueShown
from services.api_gateway.views.reservations import ReservationShown

JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"
BYTES: Final = "application/octet-stream"
TAR: Final = "application/x-tar"
BATCH: Final = "application/cloudevents-batch+json"
TEXT: Final = "text/plain"
PEM: Final = "application/x-pem-file"


class Event(msgspec.Struct):
    """One fact of the log. Several of one commit share `seq`."""

    seq: int
    at: str | None
    writer: str
    epoch: int
    kind: str
    summary: str
    fact: dict[str, Any]


class EventList(msgspec.Struct):
    """`more`: there are commits behind `next` that were not looked at."""

    events: list[Event]
    next: int
    more: bool
    seq: int


class SecretList(msgspec.Struct):
    secrets: list[SecretShown]
    seq: int


class NodePruned(msgspec.Struct):
    """What a node removed, and what it keeps.

    `uncopied` of what it keeps cannot go yet: the end of their output is only there.
    """

    node_id: str
    jobs: int
    size_bytes: int
    jobs_left: int
    bytes_left: int
    uncopied: int
    error: str


class PruneAnswer(msgspec.Struct):
    nodes: list[NodePruned]
    jobs: int
    size_bytes: int
    uploads: int
    uploads_bytes: int
    dry_run: bool


class UploadShown(msgspec.Struct):
    """A directory as it is kept."""

    sha256: str
    size_bytes: int
    sent_at: str


class AccessList(msgspec.Struct):
    access: list[AccessShown]
    dropped: int
    next: int
    more: bool
    seq: int


class JobHistory(msgspec.Struct):
    id: str
    facts: list[Event]
    next: int | None
    seq: int


class Blocker(msgspec.Struct):
    """So many nodes of one `build` (or jobs, or limits), and what rules them out."""

    what: str
    count: int
    detail: str
    build: str = ""


class Ahead(msgspec.Struct):
    job_id: str
    why: str


class Estimate(msgspec.Struct):
    """In how many seconds it may start if nobody changes anything, and from what that is; null
    where nobody can say, with why.
    """

    in_s: int | None
    basis: str


class Proof(msgspec.Struct):
    """`changes` are those of a fixed list that start it now, of each kind the least, cheapest
    first; `remedy` is the first of them, or what else can be done.

    `before` are the first of those that go before it. `at`: the sequence it is said of.
    """

    answer: str
    at: int
    blockers: list[Blocker] = []
    before: list[Ahead] = []
    changes: list[str] = []
    remedy: str | None = None
    estimate: Estimate | None = None


class Why(Proof, kw_only=True):
    """`job_id` of a job, `model` of a model."""

    state: str
    job_id: str = ""
    model: str = ""


class Placed(msgspec.Struct):
    rank: int
    node_id: str
    gpus: list[dict[str, str | int]]


class WhatIf(Proof, kw_only=True):
    """`placement` is empty unless it would start now; `decision_latency_us` is what finding this
    took the scheduler.
    """

    would_start: bool
    placement: list[Placed]
    decision_latency_us: float


class Latency(msgspec.Struct):
    p50: float
    p99: float
    n: int


class SchedulerShown(msgspec.Struct):
    """`decision_latency_us`: of its last decisions that placed a job; null before the first."""

    epoch: int
    heard_at: str | None
    decision_latency_us: Latency | None


class ClusterShown(msgspec.Struct):
    """Counts of jobs, nodes and devices by their states; shares in hundredths of a device."""

    cluster_id: str
    seq: int
    epoch: int
    leader: str
    scheduler: SchedulerShown | None
    timing: dict[str, int]
    facts: int
    ignored: int
    jobs: dict[str, int]
    nodes: dict[str, int]
    gpus: dict[str, int]
    gpus_total: int
    gpu_share_total: int
    gpu_share_held: int


class Invited(msgspec.Struct):
    """`token` is shown here and nowhere else."""

    node_id: str
    url: str
    token: str
    expires_ns: int


class Joined(msgspec.Struct):
    """`nats`: where the log's servers are."""

    node_id: str
    cluster_id: str
    nats: str


class Leaving(msgspec.Struct):
    node_id: str
    state: str


class Taken(msgspec.Struct):
    """How far the input was taken; the rest is to be sent again."""

    next_offset: int
    attempt: int
    closed: bool


class Check(msgspec.Struct):
    check: str
    ok: bool
    detail: str


class Ready(msgspec.Struct):
    ready: bool
    checks: list[Check]


class Live(msgspec.Struct):
    live: bool


class Version(msgspec.Struct):
    version: str
    facts_version: int
    snapshot_version: int


class ServedModel(msgspec.Struct):
    """A model as OpenAI shows it; `owned_by` is its tenant."""

    id: str
    object: str
    created: int
    owned_by: str


class ServedModels(msgspec.Struct):
    object: str
    data: list[ServedModel]


class Problem(msgspec.Struct):
    """RFC 9457: what was tried, on what, and what to do.

    Some have more members, such as `candidates` of an ambiguous name.
    """

    title: str
    status: int
    detail: str


class ApiFault(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(msgspec.Struct):
    error: ApiFault


class DryRun(msgspec.Struct):
    """What would be recorded for a job that is only tried."""

    dry_run: bool
    user: str
    spec: JobSpec
    warnings: list[str]


class Answer(NamedTuple):
    """The statuses of success and the body (or an `other` one) under each media type; None where it
    is no JSON of ours.
    """

    statuses: tuple[int, ...] = (200,)
    kind: Any = None
    media: tuple[str, ...] = (JSON,)
    other: Any = None

    @property
    def kinds(self) -> tuple[Any, ...]:
        return tuple(kind for kind in (self.kind, self.other) if kind is not None)


def _list(name: str, row: type, cursor: Any = str | None) -> Answer:  # noqa: ANN401  a type
    rows = types.GenericAlias(list, (row,))
    return Answer(
        kind=msgspec.defstruct(
            f"{row.__name__.removesuffix('Shown')}List",
            [(name, rows), ("next", cursor), ("seq", int)],
        )
    )


GONE: Final = Answer((204,), None, ())
ANSWERS: Final[dict[tuple[str, str], Answer]] = {
    ("POST", "/v1/jobs"): Answer((200, 201), JobShown, other=DryRun),
    ("GET", "/v1/jobs"): _list("jobs", JobShown, int | None),
    ("GET", "/v1/jobs/{ref}"): Answer(kind=JobShown),
    ("GET", "/v1/jobs/{ref}/history"): Answer(kind=JobHistory),
    ("GET", "/v1/jobs/{ref}/why"): Answer(kind=Why),
    ("GET", "/v1/jobs/{ref}/wait"): Answer(kind=JobShown),
    ("GET", "/v1/jobs/{ref}/output"): Answer(media=(BYTES,)),
    ("GET", "/v1/jobs/{ref}/attach"): Answer(media=(LINES,)),
    ("GET", "/v1/jobs/{ref}/files"): Answer(media=(BYTES, TAR)),
    ("PUT", "/v1/jobs/{ref}/stdin"): Answer(kind=Taken),
    ("GET", "/v1/jobs/{ref}/exec"): Answer((101,), media=()),
    ("GET", "/v1/jobs/{ref}/forward"): Answer((101,), media=()),
    ("POST", "/v1/jobs/{ref}/cancel"): Answer((202,), JobShown),
    ("POST", "/v1/jobs/{ref}/kill"): Answer((202,), JobShown),
    ("GET", "/v1/uploads/{sha256}"): Answer(kind=UploadShown),
    ("PUT", "/v1/uploads/{sha256}"): Answer((200, 201), UploadShown),
    ("PATCH", "/v1/jobs/{ref}"): Answer(kind=JobShown),
    ("POST", "/v1/jobs/{ref}/hold"): Answer((202,), JobShown),
    ("POST", "/v1/jobs/{ref}/release"): Answer((202,), JobShown),
    ("POST", "/v1/jobs/{ref}/requeue"): Answer((202,), JobShown),
    ("GET", "/v1/queues"): _list("queues", QueueShown),
    ("PUT", "/v1/queues/{name}"): Answer((200, 201), QueueShown),
    ("GET", "/v1/reservations"): _list("reservations", ReservationShown),
    ("PUT", "/v1/reservations/{name}"): Answer((200, 201), ReservationShown),
    ("DELETE", "/v1/reservations/{name}"): GONE,
    ("POST", "/v1/deployments"): Answer((200, 201), ModelShown),
    ("GET", "/v1/deployments"): _list("deployments", ModelShown),
    ("GET", "/v1/deployments/{name}"): Answer(kind=ModelShown),
    ("GET", "/v1/deployments/{name}/why"): Answer(kind=Why),
    ("PATCH", "/v1/deployments/{name}"): Answer(kind=ModelShown),
    ("DELETE", "/v1/deployments/{name}"): Answer((202,), ModelShown),
    ("POST", "/v1/deployments/{name}/redeploy"): Answer((202,), ModelShown),
    ("GET", "/v1/models"): Answer(kind=ServedModels),
    ("GET", "/v1/models/{id}"): Answer(kind=ServedModel),
    ("POST", "/v1/chat/completions"): Answer(media=(JSON, EVENTS)),
    ("POST", "/v1/completions"): Answer(media=(JSON, EVENTS)),
    ("POST", "/v1/embeddings"): Answer(),
    ("POST", "/v1/nodes"): Answer((201,), Invited),
    ("DELETE", "/v1/nodes/{node_id}"): Answer((202,), Leaving),
    ("GET", "/v1/nodes"): _list("nodes", NodeShown),
    ("GET", "/v1/nodes/{node_id}"): Answer(kind=NodeFull),
    ("GET", "/v1/nodes/{node_id}/topology"): Answer(kind=Topology),
    ("POST", "/v1/nodes/{node_id}/dead"): Answer((202,), NodeShown),
    ("POST", "/v1/prune"): Answer(kind=PruneAnswer),
    ("PUT", "/v1/nodes/{node_id}/service"): Answer(kind=NodeFull),
    ("GET", "/v1/gpus"): _list("gpus", GpuFull),
    ("GET", "/v1/gpus/{uuid}"): Answer(kind=GpuFull),
    ("PUT", "/v1/gpus/{uuid}/service"): Answer(kind=GpuFull),
    ("PUT", "/v1/gpus/{uuid}/controls/{control}"): Answer((202,), GpuFull),
    ("PUT", "/v1/nodes/{node_id}/controls/{control}"): Answer((202,), NodeFull),
    ("GET", "/v1/inventory"): Answer(kind=Inventory),
    ("GET", "/v1/cluster"): Answer(kind=ClusterShown),
    ("GET", "/v1/allocations"): _list("allocations", HoldShown),
    ("POST", "/v1/allocations"): Answer((200, 201), AllocationShown),
    ("GET", "/v1/allocations/{ref}"): Answer(kind=AllocationShown),
    ("PATCH", "/v1/allocations/{ref}"): Answer(kind=AllocationShown),
    ("DELETE", "/v1/allocations/{ref}"): Answer((202,), AllocationShown),
    ("POST", "/v1/whatif"): Answer(kind=WhatIf),
    ("GET", "/v1/events"): Answer(kind=EventList, media=(JSON, LINES, EVENTS)),
    ("GET", "/v1/watch"): Answer(media=(EVENTS,)),
    ("GET", "/v1/state"): Answer(kind=dict[str, Any]),
    ("GET", "/v1/access"): Answer(kind=AccessList),
    ("GET", "/v1/audit/events"): Answer(media=(BATCH, EVENTS)),
    ("GET", "/v1/audit/head"): Answer(kind=dict[str, Any]),
    ("GET", "/v1/tenants"): _list("tenants", TenantShown),
    ("GET", "/v1/tenants/{name}"): Answer(kind=TenantShown),
    ("PUT", "/v1/tenants/{name}"): Answer((200, 201), TenantShown),
    ("DELETE", "/v1/tenants/{name}"): GONE,
    ("GET", "/v1/secrets"): Answer(kind=SecretList),
    ("PUT", "/v1/secrets/{name}"): Answer((200, 201), SecretShown),
    ("DELETE", "/v1/secrets/{name}"): GONE,
    ("GET", "/v1/keys"): _list("keys", KeyShown),
    ("POST", "/v1/keys"): Answer((200, 201), KeyShown),
    ("DELETE", "/v1/keys/{key_id}"): GONE,
    ("POST", "/v1/keys/{key_id}/rotate"): Answer(kind=KeyShown),
    ("GET", "/v1/whoami"): Answer(kind=Principal),
    ("GET", "/v1/version"): Answer(kind=Version),
    ("GET", "/join/ca"): Answer(media=(PEM,)),
    ("POST", "/join"): Answer(kind=Joined),
    ("GET", "/livez"): Answer(kind=Live),
    ("GET", "/readyz"): Answer((200, 503), Ready),
    ("GET", "/metrics"): Answer(media=(TEXT,)),
}
