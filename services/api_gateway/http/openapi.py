"""/openapi.json: every route with its query, body, answer and problems, made from the types that
the code itself uses.

Pure. FastAPI contributes paths and queries (`queries.documented`), `answers.py` the answers, and
the intents' structs and bounds the bodies. The OpenAI routes, which FastAPI does not know, are
added. Tests: tests/unit/test_openapi.py, and tests/integration/test_openapi_conformance.py against
a real gateway.
"""

from typing import Any, Final

import msgspec

from libs.common.devices import mig
from libs.common.life import gpu_life
from libs.common.messages import PruneAsk
from libs.common.model import (
    BYTES_MAX,
    GPUS_PER_NODE_MAX,
    ID_PATTERN,
    ISOLATIONS,
    LEVEL_WORDS,
    LEVELS,
    PREFERRED,
    JobSpec,
)
from libs.common.model_spec import ModelSpec
from libs.common.state.ordering import POLICIES
from services.api_gateway.access import idempotency, roles
from services.api_gateway.http.answer_types import DeviceBody, OpenAIError, Problem, SessionBody
from services.api_gateway.http.answers import ANSWERS, BATCH, EVENTS, JSON, LINES, Answer
from services.api_gateway.http.queries import bounds_of
from services.api_gateway.intents import (
    batch_intents,
    identity_intents,
    job_intents,
    kept_intents,
    lock_intents,
    model_intents,
    order_intents,
    placement_fields,
    policy_fields,
    price_intents,
    prune_intents,
    reservation_intents,
    trace_intents,
)
from services.api_gateway.intents.adapter_intents import AdapterBody
from services.api_gateway.intents.copy_intents import CopyBody
from services.api_gateway.intents.fabric_intents import FabricTestBody
from services.api_gateway.intents.identity_intents import KeyBody, LimitsBody, TenantBody
from services.api_gateway.intents.kept_intents import KeepBody
from services.api_gateway.intents.lease_intents import LeasesBody
from services.api_gateway.intents.membership_intents import InviteBody, JoinBody
from services.api_gateway.intents.model_names import NamesBody
from services.api_gateway.intents.order_intents import QueueBody
from services.api_gateway.intents.reservation_intents import ReservationBody
from services.api_gateway.intents.trace_intents import TraceBody
from services.api_gateway.notify.body import NotificationBody
from services.api_gateway.openai import app as openai
from services.api_gateway.openai.routes import ROUTES
from services.api_gateway.problems import MEDIA_TYPE, TITLES

Schema = dict[str, Any]


class CloudEvent(msgspec.Struct):
    """An event of the audit: the attributes of CloudEvents 1.0, then Muster's own.
    tests/unit/test_openapi.py compares it with `services/audit/export/events.py`.
    """

    specversion: str
    id: str
    source: str
    type: str
    datacontenttype: str
    sequence: str
    chainhash: str
    writer: str
    data: Any
    subject: str | msgspec.UnsetType = msgspec.UNSET
    time: str | msgspec.UnsetType = msgspec.UNSET


REF: Final = "#/components/schemas/{name}"
DURATION: Final[Schema] = {
    "anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "maxLength": 32}],
    "description": '90, "1h30m"',
}
USER: Final[Schema] = {
    "type": "string",
    "pattern": f"^({job_intents.USER.pattern})?$",
    "description": "empty: the user of the key",
}
DURATIONS: Final = (
    *(
        "time_limit",
        "time_limit_s",
        "start_s",
        "grace_s",
        "max_execution_time",
        "startup_timeout",
        "startup_timeout_s",
    ),
    *("estimate", "estimate_s", "ageing", "time_slice", "duration", "expires", "warn", "by"),
    *(
        "checkpoint_grace",
        "checkpoint_grace_s",
        "min_run",
        "min_run_s",
        "hang_timeout",
        "hang_timeout_s",
    ),
)
# Fields of bodies that no struct has: aliases, and fields of requests about an existing thing.
SIZE: Final[Schema] = {
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": BYTES_MAX},
        {"type": "string"},
    ]
}
SIGNAL: Final[Schema] = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": job_intents.SIGNAL_MAX},
        {"type": "string"},
    ]
}
NAMES: Final[Schema] = {
    "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]
}
FIELDS: Final[dict[str, Schema]] = {
    **dict.fromkeys((*DURATIONS, "grace", "expires_in"), DURATION),
    "user": USER,
    "user_id": USER,
    "node_id": {"type": "string", "pattern": f"^{ID_PATTERN.pattern}$"},
    "name": {"type": "string", "maxLength": 128},
    "fraction": {
        "type": "number",
        "exclusiveMinimum": 0,
        "maximum": 1,
        "description": "part of each GPU, in steps of 0.01",
    },
    **dict.fromkeys(("signal", "checkpoint_signal"), SIGNAL),
    "on_control_loss": {"type": "string", "enum": list(job_intents.CONTROL_LOSS)},
    "add_nodes": {
        "type": "object",
        "properties": {
            "nodes": {
                "type": "integer",
                "minimum": 1,
                "maximum": job_intents.NEW_NODES_MAX,
                "default": 1,
            },
            "gpus": {"type": "integer", "minimum": 1, "maximum": GPUS_PER_NODE_MAX, "default": 8},
            "model": {"type": "string"},
        },
        "additionalProperties": False,
    },
    "scheduling_policy": {"type": "string", "enum": list(policy_fields.SCHEDULING_POLICIES)},
    "gpu_hours_per": {"type": "string", "enum": list(identity_intents.PERIODS)},
    "value": {"type": "string", "minLength": 1, "pattern": r"^[^\x00]+$"},
    "replicas": {"type": "integer", "minimum": 0, "maximum": model_intents.REPLICAS_MAX},
    **dict.fromkeys(("gpu_memory", "gpu_memory_min", "memory", "pool", "host_pool"), SIZE),
    **dict.fromkeys(("model", "node_list", "gpu_uuids", "gpu_affinity"), NAMES),
    **{
        level: {"type": "string", "enum": list(LEVEL_WORDS), "default": PREFERRED}
        for level in LEVELS
    },
    "cpus": {"type": "number", "minimum": 0, "maximum": placement_fields.CPUS_MILLI_MAX / 1_000},
    "compute_capability": {"type": "string", "pattern": f"^{placement_fields.CAPABILITY.pattern}$"},
    "isolation": {"type": "string", "enum": list(ISOLATIONS)},
    "mig_profile": {"type": "string", "enum": ["", *mig.PROFILES]},
    "deadline": {"type": "string", "description": "RFC 3339"},
    "short": {"type": "boolean", "default": False},
    "after": {**NAMES, "description": "afterok:JOB or afterany:JOB"},
    "jobs": batch_intents.JOBS_SCHEMA,
    "service": {"type": "string", "enum": list(gpu_life.SERVICES)},
    "force": {"type": "boolean", "default": False},
    "policy": {
        "type": "string",
        "description": f"{', '.join(POLICIES)}, or the name of a plug-in's order",
    },
}
# One of the server-sent events: `event` and `id` where the route's page says so, and JSON as
# `data`.
SERVED: Final[Schema] = {
    "type": "object",
    "properties": {
        "event": {"type": "string"},
        "id": {"type": "string"},
        "data": {"type": "string", "contentMediaType": JSON},
    },
}
# Route -> the struct whose fields its body has, the bounds of its numbers, and which it must have.
BODIES: Final[
    dict[tuple[str, str], tuple[type | None, tuple[tuple[str, int, int], ...], tuple[str, ...]]]
] = {
    ("POST", "/v1/jobs"): (JobSpec, job_intents.RANGES, ()),
    ("POST", "/v1/jobs:batch"): (batch_intents.BatchBody, (), ("jobs",)),
    ("POST", "/v1/whatif"): (JobSpec, job_intents.RANGES, ()),
    ("POST", "/v1/allocations"): (JobSpec, job_intents.RANGES, ()),
    ("PATCH", "/v1/allocations/{ref}"): (None, (), ("by",)),
    ("POST", "/v1/deployments"): (ModelSpec, model_intents.RANGES, ("name",)),
    ("POST", "/v1/deployments/{name}/redeploy"): (ModelSpec, model_intents.RANGES, ()),
    ("PATCH", "/v1/deployments/{name}"): (None, (), ("replicas",)),
    ("PATCH", "/v1/deployments/{name}/aliases"): (NamesBody, (), ()),
    ("PATCH", "/v1/deployments/{name}/guests"): (NamesBody, (), ()),
    ("PUT", "/v1/deployments/{name}/limits/{tenant}"): (
        LimitsBody,
        identity_intents.LIMIT_RANGES,
        (),
    ),
    ("PUT", "/v1/deployments/{name}/adapters/{adapter}"): (AdapterBody, (), ()),
    ("PUT", "/v1/deployments/{name}/kept/{tier}"): (KeepBody, kept_intents.RANGES, ()),
    ("POST", "/v1/jobs/{ref}/copies"): (CopyBody, (), ("to_node", "to_job")),
    ("POST", "/v1/jobs/{ref}/traces"): (TraceBody, trace_intents.RANGES, ()),
    ("PATCH", "/v1/jobs/{ref}"): (JobSpec, job_intents.RANGES, ()),
    ("PUT", "/v1/queues/{name}"): (QueueBody, order_intents.QUEUE_RANGES, ("policy",)),
    ("PUT", "/v1/reservations/{name}"): (
        ReservationBody,
        reservation_intents.RANGES,
        ("duration",),
    ),
    ("POST", "/v1/locks/{name}/acquire"): (lock_intents.AcquireBody, (), ()),
    ("POST", "/v1/locks/{name}/renew"): (lock_intents.HolderBody, (), ("holder",)),
    ("POST", "/v1/locks/{name}/release"): (lock_intents.HolderBody, (), ("holder",)),
    ("POST", "/v1/leases"): (LeasesBody, (), ("profile",)),
    ("PUT", "/v1/prices/{name}"): (price_intents.PriceBody, (), ("price",)),
    ("PUT", "/v1/tenants/{name}/idle"): (price_intents.IdleBody, (), ("action",)),
    ("POST", "/v1/fabric/tests"): (FabricTestBody, (), ()),
    ("PUT", "/v1/tenants/{name}"): (TenantBody, identity_intents.RANGES, ()),
    ("POST", "/v1/keys"): (KeyBody, identity_intents.LIMIT_RANGES, ("user",)),
    ("PUT", "/v1/keys/{key_id}/limits"): (LimitsBody, identity_intents.LIMIT_RANGES, ()),
    ("PUT", "/v1/secrets/{name}"): (None, (), ("value",)),
    ("PUT", "/v1/notifications/{name}"): (NotificationBody, (), ()),
    ("PUT", "/v1/nodes/{node_id}/service"): (None, (), ("service",)),
    ("PUT", "/v1/gpus/{uuid}/service"): (None, (), ("service",)),
    ("POST", "/v1/nodes"): (InviteBody, (), ()),
    ("POST", "/v1/prune"): (PruneAsk, prune_intents.RANGES, ()),
    ("POST", "/v1/session"): (SessionBody, (), ()),
    ("POST", "/v1/session/device/token"): (DeviceBody, (), ("device",)),
    ("POST", "/join"): (JoinBody, (), ("node_id", "secret", "public_key")),
}
RAW_BODIES: Final = (("PUT", "/v1/jobs/{ref}/stdin"), ("PUT", "/v1/uploads/{sha256}"))
# Requests that create something accept the header Idempotency-Key.
CREATING: Final = (
    ("POST", "/v1/jobs"),
    ("POST", "/v1/jobs:batch"),
    ("POST", "/v1/allocations"),
    ("POST", "/v1/deployments"),
    ("POST", "/v1/keys"),
)
PROBLEMS: Final = (400, 401, 403, 404, 405, 409, 410, 413, 422, 425, 426, 503, 507)
OPENAI_PROBLEMS: Final = (400, 401, 403, 404, 405, 413, 422, 429, 502, 503, 504)


def document(found: Schema) -> Schema:
    """Return FastAPI's document with bodies, answers, problems and the OpenAI routes."""
    schemas = _schemas()
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            _complete(operation, (method.upper(), path), schemas)
    for path in (openai.MODELS, openai.MODEL, *ROUTES):
        found["paths"][path] = _openai(path, schemas)
    submitted = found["paths"]["/v1/jobs"]["post"]["requestBody"]["content"][JSON]["schema"]
    schemas["JobBody"] = {"description": "A job to submit.", **submitted}
    found["components"] = {
        "schemas": schemas,
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    return found


def _schemas() -> dict[str, Schema]:
    """Return the schema of every struct that an answer or a body refers to."""
    kinds = [kind for answer in ANSWERS.values() for kind in answer.kinds]
    bodies = dict.fromkeys(kind for kind, _, _ in BODIES.values() if kind is not None)
    return msgspec.json.schema_components(
        [*kinds, Problem, OpenAIError, CloudEvent, *bodies], ref_template=REF
    )[1]


def _complete(operation: Schema, route: tuple[str, str], schemas: dict[str, Schema]) -> None:
    keyed = route[1] not in roles.PUBLIC
    operation["responses"] = _answers(ANSWERS[route]) | (
        _problems(PROBLEMS, "Problem", MEDIA_TYPE) if route[1] not in roles.PROBES else {}
    )
    operation["security"] = [{"key": []}] if keyed else []
    for parameter in operation.get("parameters", ()):
        _bound(parameter)
    if route in CREATING:
        operation.setdefault("parameters", []).append(_idempotency())
    if "requestBody" in operation:
        _describe(operation["requestBody"], route, schemas)
    elif route in RAW_BODIES:
        operation["requestBody"] = {
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}}
            }
        }


def _bound(parameter: Schema) -> None:
    """Add the accepted range of a whole number."""
    if parameter["schema"].get("type") == "integer":
        low, high = bounds_of(parameter["name"], parameter["schema"]["default"])
        parameter["schema"] |= {"minimum": low, "maximum": high}


def _idempotency() -> Schema:
    schema = {"type": "string", "pattern": r"^[\x21-\x7e]{1,255}$"}
    text = "a repeated request with the same key and body gets the answer of the first one"
    return {
        "name": idempotency.HEADER,
        "in": "header",
        "required": False,
        "schema": schema,
        "description": text,
    }


def _describe(body: Schema, route: tuple[str, str], schemas: dict[str, Schema]) -> None:
    """Describe each field of a body: from FIELDS, or from the body's struct with its bounds."""
    kind, ranges, required = BODIES.get(route, (None, (), ()))
    known = schemas[kind.__name__]["properties"] if kind is not None else {}
    bounds = {name: {"minimum": low, "maximum": high} for name, low, high in ranges}
    schema = body["content"][JSON]["schema"]
    for name in schema["properties"]:
        schema["properties"][name] = (
            FIELDS[name] if name in FIELDS else known[name] | bounds.get(name, {})
        )
    if required:
        schema["required"] = list(required)
    body["required"] = bool(required)


def _answers(answer: Answer) -> dict[str, Schema]:
    return {str(status): _content("Done", answer) for status in answer.statuses}


def _content(text: str, answer: Answer) -> Schema:
    content = {media: {"schema": _schema(answer, media)} for media in answer.media}
    return {"description": text, "content": content} if content else {"description": text}


def _schema(answer: Answer, media: str) -> Schema:
    if media == JSON:
        found = [*msgspec.json.schema_components(answer.kinds, ref_template=REF)[0]] or [
            {"type": "object"}
        ]
        return found[0] if len(found) == 1 else {"anyOf": found}
    if media == BATCH:
        return {"type": "array", "items": {"$ref": REF.format(name=CloudEvent.__name__)}}
    if media == EVENTS:
        return SERVED
    return (
        {"type": "string", "description": "one JSON object a line"}
        if media == LINES
        else {"type": "string"}
    )


def _problems(statuses: tuple[int, ...], kind: str, media: str) -> dict[str, Schema]:
    content = {media: {"schema": {"$ref": REF.format(name=kind)}}}
    return {
        str(status): {"description": TITLES.get(status, "Not done"), "content": content}
        for status in statuses
    }


def _openai(path: str, schemas: dict[str, Schema]) -> Schema:
    """Return the operation of an OpenAI endpoint, whose bodies and answers the model server
    defines.
    """
    method = "POST" if path in ROUTES else "GET"
    faults = _problems(OPENAI_PROBLEMS, "OpenAIError", JSON)
    operation: Schema = {
        "tags": ["openai"],
        "responses": _answers(ANSWERS[(method, path)]) | faults,
        "security": [{"key": []}],
    }
    operation["summary"] = "An endpoint of OpenAI's API; see docs/openai.md"
    if path == openai.MODEL:
        operation["parameters"] = [
            {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    if method == "POST":
        schema = {
            "type": "object",
            "properties": {"model": {"type": "string"}, "stream": {"type": "boolean"}},
            "required": ["model"],
        }
        content = {JSON: {"schema": schema}}
        if ROUTES[path].takes_form:
            content["multipart/form-data"] = {"schema": schema}
        operation["requestBody"] = {"required": True, "content": content}
    return {method.lower(): operation}
