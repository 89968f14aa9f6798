"""The JSON objects that routes answer with, where no view has the type.

Their docstrings are the descriptions in /openapi.json. `answers.py` says which route answers with
which type.
"""

from typing import Any

import msgspec

from libs.common.model import JobSpec
from services.api_gateway.access.roles import Principal
from services.api_gateway.intents.secret_intents import SecretShown
from services.api_gateway.views.control_plane import CertificateShown, LogShown, ServiceProcessShown
from services.api_gateway.views.identity import AccessShown
from services.api_gateway.views.jobs import JobShown


class Event(msgspec.Struct):
    """One fact of the log. The facts of one commit share `seq`."""

    seq: int
    at: str | None
    writer: str
    epoch: int
    kind: str
    summary: str
    fact: dict[str, Any]


class EventList(msgspec.Struct):
    """Facts in order. `more`: there are commits after `next` that this answer does not cover."""

    events: list[Event]
    next: int
    more: bool
    seq: int


class SecretList(msgspec.Struct):
    secrets: list[SecretShown]
    seq: int


class NodePruned(msgspec.Struct):
    """Directories of jobs that a node removed and kept.

    `uncopied` of the kept ones cannot be removed yet, because the end of their output is stored
    nowhere else. `error` is empty if the node answered.
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
    """An uploaded archive that the cluster keeps."""

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
    """The facts of a job, in order.

    `left_out`: some may be missing, because the gateway no longer has them in memory and the
    archive does not answer.
    """

    id: str
    facts: list[Event]
    next: int | None
    seq: int
    left_out: bool = False


class Blocker(msgspec.Struct):
    """A reason that excludes `count` nodes of one `build` (or jobs, or limits)."""

    what: str
    count: int
    detail: str
    build: str = ""


class Ahead(msgspec.Struct):
    job_id: str
    why: str


class Estimate(msgspec.Struct):
    """The estimated start of the job, in seconds from now, if nothing changes.

    `basis` says how that was computed. `in_s` is null if there is no estimate; `basis` says why.
    """

    in_s: int | None
    basis: str


class Proof(msgspec.Struct):
    """The scheduler's explanation of why a job waits.

    `at` is the sequence of the state that it explains. `before` are the first jobs ahead in the
    queue. `changes` are changes of the request that would start it now, cheapest first; `remedy` is
    the first of them, or another advice.
    """

    answer: str
    at: int
    blockers: list[Blocker] = []
    before: list[Ahead] = []
    changes: list[str] = []
    remedy: str | None = None
    estimate: Estimate | None = None


class Why(Proof, kw_only=True):
    """The explanation of a job (`job_id`) or of a model (`model`)."""

    state: str
    job_id: str = ""
    model: str = ""


class UpcomingJob(msgspec.Struct):
    """A waiting job, and its place in the order in which the scheduler tries jobs.

    `in_s` are the seconds until its expected start; null if they are unknown.
    """

    position: int
    in_s: int | None
    job: JobShown


class UpcomingList(msgspec.Struct):
    """Waiting jobs in the scheduler's order.

    `total` counts all jobs in the queue, also those of other tenants. `basis` says how the starts
    were estimated, or why there is no answer. `at` is the sequence of the state that was looked at.
    """

    jobs: list[UpcomingJob]
    next: int | None
    total: int
    basis: str
    at: int
    seq: int


class Placed(msgspec.Struct):
    rank: int
    node_id: str
    gpus: list[dict[str, str | int]]


class WhatIf(Proof, kw_only=True):
    """The answer of /v1/whatif: whether a job would start now. `placement` is empty if it would
    not. `decision_latency_us` is the time that the scheduler needed for the answer.
    """

    would_start: bool
    placement: list[Placed]
    decision_latency_us: float


class Latency(msgspec.Struct):
    p50: float
    p99: float
    n: int


class SchedulerShown(msgspec.Struct):
    """The leading scheduler. `decision_latency_us` covers its last placements (null: none yet).

    `dropped` counts messages of nodes that had a wrong sender or could not be decoded.
    """

    epoch: int
    heard_at: str | None
    decision_latency_us: Latency | None
    dropped: int = 0


class ClusterShown(msgspec.Struct):
    """Numbers of jobs, nodes and devices by state; shares are in hundredths of a device. `members`,
    `log` and `certificates` describe the control plane now; a past moment has none of them.
    """

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
    members: list[ServiceProcessShown] = []
    log: LogShown | None = None
    certificates: list[CertificateShown] = []


class Invited(msgspec.Struct):
    """An invitation. `token` is shown only in this answer."""

    node_id: str
    url: str
    token: str
    expires_ns: int


class Joined(msgspec.Struct):
    """The answer to a machine that joined. `nats` has the addresses of the log's servers."""

    node_id: str
    cluster_id: str
    nats: str


class Leaving(msgspec.Struct):
    node_id: str
    state: str


class Taken(msgspec.Struct):
    """The input was accepted up to `next_offset`; send the rest again."""

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


class SessionBody(msgspec.Struct):
    """An API key, or the code of a one-time link."""

    key: str = ""
    link: str = ""


class SessionShown(msgspec.Struct):
    """The session of a browser. `oidc`: the identity provider of the cluster can sign in."""

    signed_in: bool
    principal: Principal | None
    oidc: bool
    expires_at: str | None


class SessionLink(msgspec.Struct):
    """A link that signs in once: the path at this gateway, and the time until it expires."""

    path: str
    expires_s: int


class DeviceBegun(msgspec.Struct):
    """A sign-on of a command line: the user opens `verification_uri` and enters `user_code`.

    `verification_uri_complete` holds the code already. `device` is for the next request, which may
    follow after `interval_s`.
    """

    device: str
    user_code: str
    verification_uri: str
    verification_uri_complete: str
    interval_s: int
    expires_s: int


class DeviceBody(msgspec.Struct):
    """The device code of a sign-on, as the answer that began it gave it."""

    device: str


class DeviceSignedOn(msgspec.Struct):
    """The token of a session, or an empty one while the user has not signed in yet.

    `interval_s` is the least time until the next request then.
    """

    token: str
    principal: Principal | None
    expires_at: str | None
    interval_s: int


class MomentShown(msgspec.Struct):
    """A commit of the log and its time; null if the time is not known."""

    seq: int
    at: str | None


class MomentsShown(msgspec.Struct):
    """The oldest and the last moment that can be read; `moment`: the one that `at` means."""

    first: MomentShown
    last: MomentShown
    moment: MomentShown | None


class ServedModel(msgspec.Struct):
    """A model in OpenAI's form, or an adapter of the model `parent`; `owned_by` is its tenant."""

    id: str
    object: str
    created: int
    owned_by: str
    parent: str | msgspec.UnsetType = msgspec.UNSET


class ServedModels(msgspec.Struct):
    object: str
    data: list[ServedModel]


class Problem(msgspec.Struct):
    """A problem (RFC 9457): what failed, on what, and what to do next.

    Some have more members, for example `candidates` for an ambiguous name.
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
    """The job that would be recorded without `dry_run`."""

    dry_run: bool
    user: str
    spec: JobSpec
    warnings: list[str]
