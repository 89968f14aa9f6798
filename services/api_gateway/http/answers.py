"""The type of every route's answer: one table, from which the OpenAPI document is made.

Schemathesis holds the real gateway to it. A list answers with its rows under their name, `next`
(the value of `after` for the following page; null at the end) and `seq`, the last commit that the
answer includes. tests/unit/test_openapi.py checks that every route has a row.
"""

import types
from typing import Any, Final, NamedTuple

import msgspec

from libs.common.devices.topology import Topology
from libs.common.state.inventory import Inventory
from services.api_gateway.access.roles import Principal
from services.api_gateway.channels.job_copies import CopyShown
from services.api_gateway.http.agreement import VerifyShown
from services.api_gateway.http.answer_types import (
    AccessList,
    ClusterShown,
    DeviceBegun,
    DeviceSignedOn,
    DryRun,
    EventList,
    Invited,
    JobHistory,
    Joined,
    Leaving,
    Live,
    MomentsShown,
    PruneAnswer,
    Ready,
    SecretList,
    ServedModel,
    ServedModels,
    SessionLink,
    SessionShown,
    Taken,
    UpcomingList,
    UploadShown,
    Version,
    WhatIf,
    Why,
)
from services.api_gateway.http.batch_types import BatchAnswer
from services.api_gateway.http.pulled import NodePulled, Unpulled
from services.api_gateway.http.pulls import PullShown
from services.api_gateway.http.readings import NodeReadings
from services.api_gateway.intents.secret_intents import SecretShown
from services.api_gateway.traces.shown import TraceShown
from services.api_gateway.views.adapters import AdapterList, AdapterShown
from services.api_gateway.views.allocations import AllocationShown, HoldShown
from services.api_gateway.views.charges import ChargeList
from services.api_gateway.views.diagnosis_words import DiagnosisMade, DiagnosisShown
from services.api_gateway.views.elements import ElementList
from services.api_gateway.views.fabric import FabricShown, TestShown
from services.api_gateway.views.fleet import FleetNodeShown
from services.api_gateway.views.identity import KeyShown, TenantShown
from services.api_gateway.views.jobs import JobShown
from services.api_gateway.views.kept import KeptList, KeptShown
from services.api_gateway.views.leases import LeasesShown
from services.api_gateway.views.locks import ClaimShown, LockShown
from services.api_gateway.views.log_servers import BusShown, ServerOrdered
from services.api_gateway.views.memory import NodeMemoryShown
from services.api_gateway.views.models import ModelShown
from services.api_gateway.views.nodes import GpuFull, NodeFull, NodeShown
from services.api_gateway.views.notifications import (
    NotificationList,
    NotificationSetShown,
    NotificationTested,
)
from services.api_gateway.views.output_search import SearchAnswer
from services.api_gateway.views.prices import PriceList
from services.api_gateway.views.queues import QueueShown
from services.api_gateway.views.reservations import ReservationShown
from services.api_gateway.views.usage import UsageList

JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
EVENTS: Final = "text/event-stream"
BYTES: Final = "application/octet-stream"
TAR: Final = "application/x-tar"
BATCH: Final = "application/cloudevents-batch+json"
TEXT: Final = "text/plain"
GZIP: Final = "application/gzip"
PEM: Final = "application/x-pem-file"


class Answer(NamedTuple):
    """The answer of one route: its success statuses, media types and JSON types.

    `kind` and `other` are the possible types of the JSON body; None if the body is not typed.
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
    ("POST", "/v1/jobs:batch"): Answer(kind=BatchAnswer),
    ("GET", "/v1/jobs"): _list("jobs", JobShown, int | None),
    ("GET", "/v1/jobs/{ref}"): Answer(kind=JobShown),
    ("GET", "/v1/jobs/{ref}/elements"): Answer(kind=ElementList),
    ("GET", "/v1/jobs/{ref}/history"): Answer(kind=JobHistory),
    ("GET", "/v1/jobs/{ref}/why"): Answer(kind=Why),
    ("GET", "/v1/jobs/{ref}/pulls"): _list("pulls", PullShown),
    ("POST", "/v1/jobs/{ref}/diagnoses"): Answer(kind=DiagnosisMade),
    ("GET", "/v1/jobs/{ref}/diagnoses"): _list("diagnoses", DiagnosisShown),
    ("GET", "/v1/jobs/{ref}/diagnoses/evidence"): Answer(),
    ("GET", "/v1/pulled"): _list("nodes", NodePulled),
    ("DELETE", "/v1/pulled/{node_id}"): Answer(kind=Unpulled),
    ("GET", "/v1/jobs/{ref}/wait"): Answer(kind=JobShown),
    ("GET", "/v1/jobs/{ref}/output"): Answer(media=(BYTES,)),
    ("GET", "/v1/jobs/{ref}/output/search"): Answer(kind=SearchAnswer),
    ("GET", "/v1/jobs/{ref}/attach"): Answer(media=(LINES,)),
    ("GET", "/v1/jobs/{ref}/files"): Answer(media=(BYTES, TAR)),
    ("POST", "/v1/jobs/{ref}/copies"): Answer((202,), CopyShown),
    ("GET", "/v1/jobs/{ref}/copies/{copy}"): Answer(kind=CopyShown),
    ("POST", "/v1/jobs/{ref}/traces"): Answer((202,), TraceShown),
    ("GET", "/v1/jobs/{ref}/traces"): _list("traces", TraceShown),
    ("GET", "/v1/jobs/{ref}/traces/{trace}"): Answer(kind=TraceShown),
    ("GET", "/v1/jobs/{ref}/traces/{trace}/file"): Answer(media=(GZIP,)),
    ("PUT", "/v1/jobs/{ref}/stdin"): Answer(kind=Taken),
    ("GET", "/v1/jobs/{ref}/exec"): Answer((101,), media=()),
    ("GET", "/v1/jobs/{ref}/forward"): Answer((101,), media=()),
    ("POST", "/v1/jobs/{ref}/cancel"): Answer((202,), JobShown),
    ("POST", "/v1/jobs/{ref}/kill"): Answer((202,), JobShown),
    ("GET", "/v1/uploads"): _list("uploads", UploadShown),
    ("GET", "/v1/uploads/{sha256}"): Answer(kind=UploadShown),
    ("PUT", "/v1/uploads/{sha256}"): Answer((200, 201), UploadShown),
    ("DELETE", "/v1/uploads/{sha256}"): Answer(kind=UploadShown),
    ("PATCH", "/v1/jobs/{ref}"): Answer(kind=JobShown),
    ("POST", "/v1/jobs/{ref}/hold"): Answer((202,), JobShown),
    ("POST", "/v1/jobs/{ref}/release"): Answer((202,), JobShown),
    ("POST", "/v1/jobs/{ref}/requeue"): Answer((202,), JobShown),
    ("GET", "/v1/upcoming"): Answer(kind=UpcomingList),
    ("GET", "/v1/queues"): _list("queues", QueueShown),
    ("PUT", "/v1/queues/{name}"): Answer((200, 201), QueueShown),
    ("GET", "/v1/reservations"): _list("reservations", ReservationShown),
    ("PUT", "/v1/reservations/{name}"): Answer((200, 201), ReservationShown),
    ("DELETE", "/v1/reservations/{name}"): GONE,
    ("GET", "/v1/locks"): _list("locks", LockShown),
    ("GET", "/v1/locks/{name}"): Answer(kind=LockShown),
    ("POST", "/v1/locks/{name}/acquire"): Answer((200, 202), ClaimShown),
    ("POST", "/v1/locks/{name}/renew"): Answer(kind=ClaimShown),
    ("POST", "/v1/locks/{name}/release"): Answer(kind=ClaimShown),
    ("POST", "/v1/deployments"): Answer((200, 201), ModelShown),
    ("GET", "/v1/deployments"): _list("deployments", ModelShown),
    ("GET", "/v1/deployments/{name}"): Answer(kind=ModelShown),
    ("GET", "/v1/deployments/{name}/why"): Answer(kind=Why),
    ("PATCH", "/v1/deployments/{name}"): Answer(kind=ModelShown),
    ("DELETE", "/v1/deployments/{name}"): Answer((202,), ModelShown),
    ("POST", "/v1/deployments/{name}/redeploy"): Answer((202,), ModelShown),
    ("PATCH", "/v1/deployments/{name}/aliases"): Answer(kind=ModelShown),
    ("PATCH", "/v1/deployments/{name}/guests"): Answer(kind=ModelShown),
    ("PUT", "/v1/deployments/{name}/limits/{tenant}"): Answer(kind=ModelShown),
    ("GET", "/v1/adapters"): Answer(kind=AdapterList),
    ("PUT", "/v1/deployments/{name}/adapters/{adapter}"): Answer((200, 201), AdapterShown),
    ("DELETE", "/v1/deployments/{name}/adapters/{adapter}"): GONE,
    ("GET", "/v1/kept"): Answer(kind=KeptList),
    ("PUT", "/v1/deployments/{name}/kept/{tier}"): Answer((200, 201), KeptShown),
    ("DELETE", "/v1/deployments/{name}/kept/{tier}"): GONE,
    ("GET", "/v1/models"): Answer(kind=ServedModels),
    ("GET", "/v1/models/{id}"): Answer(kind=ServedModel),
    ("POST", "/v1/chat/completions"): Answer(media=(JSON, EVENTS)),
    ("POST", "/v1/completions"): Answer(media=(JSON, EVENTS)),
    ("POST", "/v1/embeddings"): Answer(),
    ("POST", "/v1/responses"): Answer(media=(JSON, EVENTS)),
    ("POST", "/v1/audio/speech"): Answer(media=(BYTES, EVENTS)),
    ("POST", "/v1/audio/transcriptions"): Answer(media=(JSON, TEXT, EVENTS)),
    ("POST", "/v1/audio/translations"): Answer(media=(JSON, TEXT, EVENTS)),
    ("POST", "/v1/images/generations"): Answer(media=(JSON, EVENTS)),
    ("POST", "/v1/images/edits"): Answer(media=(JSON, EVENTS)),
    ("POST", "/v1/images/variations"): Answer(),
    ("POST", "/v1/rerank"): Answer(),
    ("POST", "/v1/score"): Answer(),
    ("POST", "/tokenize"): Answer(),
    ("POST", "/detokenize"): Answer(),
    ("POST", "/v1/nodes"): Answer((201,), Invited),
    ("DELETE", "/v1/nodes/{node_id}"): Answer((202,), Leaving),
    ("GET", "/v1/nodes"): _list("nodes", NodeShown),
    ("GET", "/v1/nodes/{node_id}"): Answer(kind=NodeFull),
    ("GET", "/v1/nodes/{node_id}/readings"): Answer(kind=NodeReadings),
    ("GET", "/v1/nodes/{node_id}/topology"): Answer(kind=Topology),
    ("POST", "/v1/nodes/{node_id}/dead"): Answer((202,), NodeShown),
    ("POST", "/v1/prune"): Answer(kind=PruneAnswer),
    ("PUT", "/v1/nodes/{node_id}/service"): Answer(kind=NodeFull),
    ("GET", "/v1/fleet"): _list("nodes", FleetNodeShown),
    ("GET", "/v1/gpus"): _list("gpus", GpuFull),
    ("GET", "/v1/gpus/{uuid}"): Answer(kind=GpuFull),
    ("PUT", "/v1/gpus/{uuid}/service"): Answer(kind=GpuFull),
    ("PUT", "/v1/gpus/{uuid}/controls/{control}"): Answer((202,), GpuFull),
    ("PUT", "/v1/nodes/{node_id}/controls/{control}"): Answer((202,), NodeFull),
    ("GET", "/v1/inventory"): Answer(kind=Inventory),
    ("GET", "/v1/bus"): Answer(kind=BusShown),
    ("POST", "/v1/bus/{server}/restart"): Answer((202,), ServerOrdered),
    ("POST", "/v1/bus/{server}/replace"): Answer((202,), ServerOrdered),
    ("POST", "/v1/bus/replicas/{count}"): Answer((202,), ServerOrdered),
    ("GET", "/v1/leases"): Answer(kind=LeasesShown),
    ("POST", "/v1/leases"): Answer((202,), LeasesShown),
    ("GET", "/v1/fabric"): Answer(kind=FabricShown),
    ("POST", "/v1/fabric/tests"): Answer((202,), TestShown),
    ("GET", "/v1/fabric/tests/{test}"): Answer(kind=TestShown),
    ("GET", "/v1/cluster"): Answer(kind=ClusterShown),
    ("GET", "/v1/cluster/verify"): Answer(kind=VerifyShown),
    ("GET", "/v1/memory"): _list("nodes", NodeMemoryShown),
    ("GET", "/v1/allocations"): _list("allocations", HoldShown),
    ("POST", "/v1/allocations"): Answer((200, 201), AllocationShown),
    ("GET", "/v1/allocations/{ref}"): Answer(kind=AllocationShown),
    ("PATCH", "/v1/allocations/{ref}"): Answer(kind=AllocationShown),
    ("DELETE", "/v1/allocations/{ref}"): Answer((202,), AllocationShown),
    ("POST", "/v1/whatif"): Answer(kind=WhatIf),
    ("GET", "/v1/events"): Answer(kind=EventList, media=(JSON, LINES, EVENTS)),
    ("GET", "/v1/watch"): Answer(media=(EVENTS,)),
    ("GET", "/v1/ws"): Answer((101,), media=()),
    ("GET", "/v1/state"): Answer(kind=dict[str, Any]),
    ("GET", "/v1/access"): Answer(kind=AccessList),
    ("GET", "/v1/usage"): Answer(kind=UsageList, media=(JSON, "text/csv")),
    ("GET", "/v1/charges"): Answer(kind=ChargeList, media=(JSON, "text/csv")),
    ("GET", "/v1/prices"): Answer(kind=PriceList),
    ("PUT", "/v1/prices/{name}"): Answer(kind=PriceList),
    ("DELETE", "/v1/prices/{name}"): GONE,
    ("PUT", "/v1/tenants/{name}/idle"): Answer(kind=TenantShown),
    ("GET", "/v1/audit/events"): Answer(media=(BATCH, EVENTS)),
    ("GET", "/v1/audit/head"): Answer(kind=dict[str, Any]),
    ("GET", "/v1/tenants"): _list("tenants", TenantShown),
    ("GET", "/v1/tenants/{name}"): Answer(kind=TenantShown),
    ("PUT", "/v1/tenants/{name}"): Answer((200, 201), TenantShown),
    ("DELETE", "/v1/tenants/{name}"): GONE,
    ("GET", "/v1/secrets"): Answer(kind=SecretList),
    ("PUT", "/v1/secrets/{name}"): Answer((200, 201), SecretShown),
    ("DELETE", "/v1/secrets/{name}"): GONE,
    ("GET", "/v1/notifications"): Answer(kind=NotificationList),
    ("PUT", "/v1/notifications/{name}"): Answer((200, 201), NotificationSetShown),
    ("DELETE", "/v1/notifications/{name}"): GONE,
    ("POST", "/v1/notifications/{name}/test"): Answer(kind=NotificationTested),
    ("GET", "/v1/keys"): _list("keys", KeyShown),
    ("POST", "/v1/keys"): Answer((200, 201), KeyShown),
    ("DELETE", "/v1/keys/{key_id}"): GONE,
    ("POST", "/v1/keys/{key_id}/rotate"): Answer(kind=KeyShown),
    ("PUT", "/v1/keys/{key_id}/limits"): Answer(kind=KeyShown),
    ("GET", "/v1/whoami"): Answer(kind=Principal),
    ("GET", "/v1/version"): Answer(kind=Version),
    ("GET", "/v1/moments"): Answer(kind=MomentsShown),
    ("GET", "/v1/session"): Answer(kind=SessionShown),
    ("POST", "/v1/session"): Answer(kind=SessionShown),
    ("DELETE", "/v1/session"): GONE,
    ("POST", "/v1/session/links"): Answer((201,), SessionLink),
    ("GET", "/v1/session/oidc"): Answer((303,), None, ()),
    ("GET", "/v1/session/oidc/callback"): Answer((303,), None, ()),
    ("POST", "/v1/session/device"): Answer((201,), DeviceBegun),
    ("POST", "/v1/session/device/token"): Answer((200, 202), DeviceSignedOn),
    ("GET", "/join/ca"): Answer(media=(PEM,)),
    ("POST", "/join"): Answer(kind=Joined),
    ("GET", "/livez"): Answer(kind=Live),
    ("GET", "/readyz"): Answer((200, 503), Ready),
    ("GET", "/metrics"): Answer(media=(TEXT,)),
}
