"""Every gRPC method: its service, the route that answers it, and how messages travel.

Pure. `services/api_gateway/description/` makes the proto files from this table and the types of the
routes; `server.py` serves it. A method that was released is never removed or renamed. Tests:
tests/unit/test_api_description.py.
"""

from enum import Enum
from typing import Any, Final, NamedTuple

from services.api_gateway.http.answer_types import DryRun, Event
from services.api_gateway.rpc import message_types as m

PACKAGE: Final = "muster.v1"


class Kind(Enum):
    """The form in which the messages of a method travel."""

    ONE = "one message, one answer"
    RAW = "one message with bytes, one answer"
    POLLED = "one message, the thing at each change"
    BYTES = "one message, a stream of bytes"
    LINES = "one message, a stream of JSON lines"
    EVENTS = "one message, a stream of server-sent events"
    UPLOAD = "a stream of bytes, one answer"
    EXEC = "a stream each way: a command"
    FORWARD = "a stream each way: a port"
    CALL = "a stream each way: any endpoint of models"

    @property
    def streams_requests(self) -> bool:
        return self in (Kind.UPLOAD, Kind.EXEC, Kind.FORWARD, Kind.CALL)

    @property
    def streams_answers(self) -> bool:
        return self not in (Kind.ONE, Kind.RAW, Kind.UPLOAD)


class Method(NamedTuple):
    """One method.

    `asks` and `answers` are the messages' types if the route does not give them. `fixed` are
    parameters of the query that the method itself sets, `query` those of a route with a body,
    `drops` those that messages do not have. `limit` is the page's size if a request has none.
    `sends` is False for a DELETE without a body. `text` describes the method if the route's text
    does not.
    """

    service: str
    name: str
    verb: str
    path: str
    kind: Kind = Kind.ONE
    asks: Any = None
    answers: Any = None
    fixed: tuple[tuple[str, str], ...] = ()
    query: tuple[str, ...] = ()
    drops: tuple[str, ...] = ()
    limit: int = 0
    sends: bool = True
    text: str = ""

    @property
    def route(self) -> tuple[str, str]:
        return self.verb, self.path

    @property
    def full_name(self) -> str:
        """The path of the method on the wire."""
        return f"/{PACKAGE}.{self.service}/{self.name}"

    @property
    def has_body(self) -> bool:
        """Return whether the fields of a message that are not in the path become a JSON body."""
        return self.verb != "GET" and self.sends and self.kind is not Kind.RAW


# A page of an answer must fit into the 4 MiB that a client accepts by default.
PAGE_ROWS: Final = 500
JOB: Final = "/v1/jobs/{ref}"
MODEL: Final = "/v1/deployments/{name}"
NODE: Final = "/v1/nodes/{node_id}"
HOLD: Final = "/v1/allocations/{ref}"
CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"

DRY: Final = (("dry_run", "true"),)
CHECKS: Final = "Check a job and return what would be recorded, without submitting it."

_JOBS: Final = (
    Method("Jobs", "SubmitJob", "POST", "/v1/jobs"),
    Method("Jobs", "SubmitJobs", "POST", "/v1/jobs:batch", query=("dry_run",)),
    Method("Jobs", "CheckJob", "POST", "/v1/jobs", answers=DryRun, fixed=DRY, text=CHECKS),
    Method("Jobs", "PlanJob", "POST", "/v1/whatif"),
    Method("Jobs", "ListJobs", "GET", "/v1/jobs"),
    Method("Jobs", "GetJob", "GET", JOB),
    Method("Jobs", "GetJobHistory", "GET", f"{JOB}/history"),
    Method("Jobs", "ListElements", "GET", f"{JOB}/elements"),
    Method("Jobs", "ExplainJob", "GET", f"{JOB}/why"),
    Method("Jobs", "UpdateJob", "PATCH", JOB),
    Method("Jobs", "CancelJob", "POST", f"{JOB}/cancel"),
    Method("Jobs", "KillJob", "POST", f"{JOB}/kill"),
    Method("Jobs", "HoldJob", "POST", f"{JOB}/hold"),
    Method("Jobs", "ReleaseJob", "POST", f"{JOB}/release"),
    Method("Jobs", "RequeueJob", "POST", f"{JOB}/requeue"),
    Method(
        "Jobs",
        "WaitJob",
        "GET",
        f"{JOB}/wait",
        Kind.POLLED,
        drops=("timeout_s", "state"),
        text="Return the job now and at each change of its state, until it has ended.",
    ),
    Method(
        "Jobs",
        "FollowJob",
        "GET",
        f"{JOB}/attach",
        Kind.LINES,
        answers=m.JobFrame,
        text="Return both outputs and every change of state, until the job has ended.",
    ),
    Method("Jobs", "ReadOutput", "GET", f"{JOB}/output", Kind.BYTES, answers=m.BytesPiece),
    Method("Jobs", "ReadFile", "GET", f"{JOB}/files", Kind.BYTES, answers=m.BytesPiece),
    Method(
        "Jobs",
        "SendInput",
        "PUT",
        f"{JOB}/stdin",
        Kind.RAW,
        query=("offset", "attempt", "eof"),
    ),
    Method(
        "Jobs",
        "Exec",
        "GET",
        f"{JOB}/exec",
        Kind.EXEC,
        asks=m.ExecInput,
        answers=m.ExecOutput,
        text="Run a command beside the job, in its environment.",
    ),
    Method(
        "Jobs",
        "Forward",
        "GET",
        f"{JOB}/forward",
        Kind.FORWARD,
        asks=m.ForwardPiece,
        answers=m.ForwardPiece,
        text="Connect to a port on which the job listens on its node.",
    ),
    Method("Jobs", "CopyFiles", "POST", f"{JOB}/copies"),
    Method("Jobs", "GetCopy", "GET", f"{JOB}/copies/{{copy}}"),
    Method("Jobs", "TraceJob", "POST", f"{JOB}/traces"),
    Method("Jobs", "ListTraces", "GET", f"{JOB}/traces"),
    Method("Jobs", "GetTrace", "GET", f"{JOB}/traces/{{trace}}"),
    Method(
        "Jobs",
        "ReadTrace",
        "GET",
        f"{JOB}/traces/{{trace}}/file",
        Kind.BYTES,
        answers=m.BytesPiece,
    ),
    Method("Jobs", "ListUploads", "GET", "/v1/uploads", limit=PAGE_ROWS),
    Method("Jobs", "FindUpload", "GET", "/v1/uploads/{sha256}"),
    Method("Jobs", "SendUpload", "PUT", "/v1/uploads/{sha256}", Kind.UPLOAD, m.UploadPiece),
    Method("Jobs", "RemoveUpload", "DELETE", "/v1/uploads/{sha256}", sends=False),
    Method("Jobs", "ListQueues", "GET", "/v1/queues"),
)
_NODES: Final = (
    Method("Nodes", "ListNodes", "GET", "/v1/nodes", limit=PAGE_ROWS),
    Method("Nodes", "GetNode", "GET", NODE),
    Method("Nodes", "GetNodeTopology", "GET", f"{NODE}/topology"),
    Method("Nodes", "SetNodeService", "PUT", f"{NODE}/service"),
    Method("Nodes", "SetNodeControl", "PUT", f"{NODE}/controls/{{control}}"),
    Method("Nodes", "ListGpus", "GET", "/v1/gpus", limit=PAGE_ROWS),
    Method("Nodes", "GetGpu", "GET", "/v1/gpus/{uuid}"),
    Method("Nodes", "SetGpuService", "PUT", "/v1/gpus/{uuid}/service"),
    Method("Nodes", "SetGpuControl", "PUT", "/v1/gpus/{uuid}/controls/{control}"),
    Method("Nodes", "GetCluster", "GET", "/v1/cluster"),
    Method("Nodes", "GetVersion", "GET", "/v1/version"),
    Method("Nodes", "WhoAmI", "GET", "/v1/whoami"),
)
_MODELS: Final = (
    Method("Models", "DeployModel", "POST", "/v1/deployments"),
    Method("Models", "ListModels", "GET", "/v1/deployments", limit=PAGE_ROWS),
    Method("Models", "GetModel", "GET", MODEL),
    Method("Models", "ExplainModel", "GET", f"{MODEL}/why"),
    Method("Models", "ScaleModel", "PATCH", MODEL),
    Method("Models", "UndeployModel", "DELETE", MODEL),
    Method("Models", "RedeployModel", "POST", f"{MODEL}/redeploy"),
    Method("Models", "SetModelAliases", "PATCH", f"{MODEL}/aliases"),
    Method("Models", "ShareModel", "PATCH", f"{MODEL}/guests"),
    Method("Models", "LimitModel", "PUT", f"{MODEL}/limits/{{tenant}}"),
    Method("Models", "ListAdapters", "GET", "/v1/adapters"),
    Method("Models", "SetAdapter", "PUT", f"{MODEL}/adapters/{{adapter}}"),
    Method("Models", "RemoveAdapter", "DELETE", f"{MODEL}/adapters/{{adapter}}", answers=m.Done),
    Method("Models", "ListKept", "GET", "/v1/kept"),
    Method("Models", "KeepModel", "PUT", f"{MODEL}/kept/{{tier}}"),
    Method("Models", "DropModel", "DELETE", f"{MODEL}/kept/{{tier}}", answers=m.Done),
)
_ALLOCATIONS: Final = (
    Method("Allocations", "CreateAllocation", "POST", "/v1/allocations"),
    Method("Allocations", "ListAllocations", "GET", "/v1/allocations", limit=PAGE_ROWS),
    Method("Allocations", "GetAllocation", "GET", HOLD),
    Method("Allocations", "ExtendAllocation", "PATCH", HOLD),
    Method("Allocations", "ReleaseAllocation", "DELETE", HOLD, sends=False),
)
_EVENTS: Final = (
    Method("Events", "ListEvents", "GET", "/v1/events", drops=("follow",)),
    Method(
        "Events",
        "FollowEvents",
        "GET",
        "/v1/events",
        Kind.EVENTS,
        answers=Event,
        drops=("follow", "limit"),
        text="Return facts as they are recorded: from now on, or after `after` or `last`.",
    ),
    Method(
        "Events",
        "Watch",
        "GET",
        "/v1/watch",
        Kind.EVENTS,
        answers=m.Change,
        text="Return jobs and nodes as they are, and again at each change.",
    ),
)
_INFERENCE: Final = (
    Method(
        "Inference",
        "Chat",
        "POST",
        CHAT,
        asks=m.ChatRequest,
        answers=m.ChatAnswer,
        text="Return a model's answer in a conversation.",
    ),
    Method(
        "Inference",
        "ChatStream",
        "POST",
        CHAT,
        Kind.EVENTS,
        asks=m.ChatRequest,
        answers=m.ChatAnswer,
        text="Return a model's answer in a conversation as it is generated.",
    ),
    Method(
        "Inference",
        "Complete",
        "POST",
        TEXT,
        asks=m.CompletionRequest,
        answers=m.CompletionAnswer,
        text="Return a model's continuation of a text.",
    ),
    Method(
        "Inference",
        "CompleteStream",
        "POST",
        TEXT,
        Kind.EVENTS,
        asks=m.CompletionRequest,
        answers=m.CompletionAnswer,
        text="Return a model's continuation of a text as it is generated.",
    ),
    Method(
        "Inference",
        "Embed",
        "POST",
        "/v1/embeddings",
        asks=m.EmbeddingRequest,
        answers=m.EmbeddingAnswer,
        text="Return the vectors of texts.",
    ),
    Method(
        "Inference",
        "CallModel",
        "POST",
        "/v1/{endpoint}",
        Kind.CALL,
        asks=m.ModelCall,
        answers=m.ModelBytes,
        text="Send a request to any endpoint of models, and return the bytes of its answer.",
    ),
    Method("Inference", "ListServedModels", "GET", "/v1/models", text="List the served models."),
    Method("Inference", "GetServedModel", "GET", "/v1/models/{id}", text="Show a served model."),
)
_LOCKS: Final = (
    Method("Locks", "ListLocks", "GET", "/v1/locks", limit=PAGE_ROWS),
    Method("Locks", "GetLock", "GET", "/v1/locks/{name}"),
    Method("Locks", "AcquireLock", "POST", "/v1/locks/{name}/acquire"),
    Method("Locks", "RenewLock", "POST", "/v1/locks/{name}/renew"),
    Method("Locks", "ReleaseLock", "POST", "/v1/locks/{name}/release"),
)
METHODS: Final = (*_JOBS, *_NODES, *_MODELS, *_ALLOCATIONS, *_EVENTS, *_INFERENCE, *_LOCKS)
SERVICES: Final = tuple(dict.fromkeys(method.service for method in METHODS))
