"""The JSON objects that routes answer with, where no view has the type.

Their docstrings are the descriptions in /openapi.json. `answers.py` says which route answers with
which type.
"""

from typing import Any

import msgspec

from libs.common.model import JobSpec
from services.api_gateway.intents.secret_intents import SecretShown
from services.api_gateway.views.identity import AccessShown


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
