"""The proto files as values: messages of the description's types, and services of the methods.

Pure. A type stands in the file of the first service that needs it. All scalars of messages that
requests consist of are optional, so that a value that was left out differs from zero.
Tests: tests/unit/test_api_description.py.
"""

import inspect
import re
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from services.api_gateway.description.proto_kinds import (
    WELL_KNOWN,
    Kind,
    Schema,
    kind_of,
    message_name,
)
from services.api_gateway.http.openapi import REF
from services.api_gateway.rpc import methods
from services.api_gateway.rpc.methods import Method

JSON: Final = "application/json"
PARAMETER: Final = re.compile(r"\{(\w+)\}")
# Message -> field -> number.
Numbers = dict[str, dict[str, int]]


class Field(NamedTuple):
    """A field of a message. `is_optional`: it says whether it was set."""

    name: str
    kind: Kind
    is_optional: bool = False
    text: str = ""
    number: int = 0


class Message(NamedTuple):
    """A message. `removed` are fields of earlier versions, whose numbers stay reserved."""

    name: str
    text: str
    fields: tuple[Field, ...]
    removed: tuple[tuple[str, int], ...] = ()


class Call(NamedTuple):
    """A method of a service."""

    name: str
    text: str
    request: str
    answer: str
    streams_requests: bool
    streams_answers: bool


class File(NamedTuple):
    """One proto file."""

    service: str
    text: str
    calls: tuple[Call, ...]
    messages: tuple[Message, ...]
    imports: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"muster/v1/{self.service.lower()}.proto"


class Described(NamedTuple):
    """The parts of a message. `is_request`: of a route's path, query and body."""

    text: str
    properties: dict[str, Schema]
    required: tuple[str, ...]
    is_request: bool = False


class Types:
    """The messages that methods need, from the OpenAPI document and the types of gRPC alone."""

    def __init__(self, document: Schema) -> None:
        self.paths: dict[str, Any] = document["paths"]
        own = [kind for each in methods.METHODS for kind in (each.asks, each.answers) if kind]
        self.refs, schemas = msgspec.json.schema_components(own, ref_template=REF)
        self.own = dict(zip(own, self.refs, strict=True))
        schemas = {**document["components"]["schemas"], **schemas}
        self.described = {
            message_name(name): Described(
                str(schema.get("description", "")),
                schema.get("properties", {}),
                tuple(schema.get("required", ())),
            )
            for name, schema in schemas.items()
        }
        assert len(self.described) == len(schemas), "two types have one message name"

    def operation(self, method: Method) -> Schema:
        """Return the route's operation; an empty one for any endpoint of models."""
        found: Schema = self.paths.get(method.path, {}).get(method.verb.lower(), {})
        return found

    def answer(self, method: Method) -> str:
        """Return the name of the method's answer."""
        if method.answers is not None:
            return kind_of(self.own[method.answers]).name
        responses = self.operation(method)["responses"]
        content = next(each["content"] for code, each in responses.items() if code[0] == "2")
        schema = content[JSON]["schema"]
        return kind_of(schema["anyOf"][0] if "anyOf" in schema else schema).name

    def request(self, method: Method) -> str:
        """Return the name of the method's request, and describe it if it is the route's own."""
        if method.asks is not None:
            return kind_of(self.own[method.asks]).name
        name = f"{method.name}Request"
        assert name not in self.described, f"{name} is taken"
        self.described[name] = self._request(method)
        return name

    def _request(self, method: Method) -> Described:
        operation = self.operation(method)
        given = {each["name"]: each["schema"] for each in operation.get("parameters", ())}
        path = tuple(PARAMETER.findall(method.path))
        skipped = (*method.drops, *(name for name, _ in method.fixed))
        found: dict[str, Schema] = {name: {"type": "string"} for name in path}
        for name, schema in given.items():
            if method.verb == "GET" or name in method.query or not method.sends:
                found.setdefault(name, schema)
        body = operation.get("requestBody", {}).get("content", {})
        if method.kind is methods.Kind.RAW:
            found["data"] = {"type": "string", "contentEncoding": "base64"}
        elif JSON in body:
            fields = body[JSON]["schema"].get("properties", {})
            assert not set(found) & set(fields), f"{method.name}: two fields have one name"
            found |= fields
        return Described(
            f"The request of {method.name}: {method.verb} {method.path}.",
            {name: schema for name, schema in found.items() if name not in skipped},
            path,
            is_request=True,
        )

    def closure(self, name: str) -> list[str]:
        """Return a message after all that it consists of."""
        found: dict[str, None] = {}

        def visit(each: str) -> None:
            for part in self.parts(each):
                if part not in found and part != each:
                    visit(part)
            found[each] = None

        visit(name)
        return list(found)

    def parts(self, name: str) -> list[str]:
        """Return the messages that fields of a message have."""
        kinds = map(kind_of, self.described[name].properties.values())
        return [kind.name for kind in kinds if kind.is_message and kind.name not in WELL_KNOWN]


def files(document: Schema, numbers: Numbers) -> list[File]:
    """Return all proto files. Fields without a number get the next one, which `numbers` keeps."""
    types = Types(document)
    calls = {service: _calls(types, service) for service in methods.SERVICES}
    asked = _asked(types, [call.request for found in calls.values() for call in found])
    home: dict[str, str] = {}
    found = []
    for service, own in calls.items():
        needed = dict.fromkeys(
            name
            for call in own
            for root in (call.request, call.answer)
            for name in types.closure(root)
        )
        fresh = [name for name in needed if name not in home]
        home |= dict.fromkeys(fresh, service)
        messages = tuple(_message(types, name, name in asked, numbers) for name in fresh)
        found.append(
            File(
                service=service,
                text=TEXTS[service],
                calls=own,
                messages=messages,
                imports=_imports(needed, home, service),
            )
        )
    return found


TEXTS: Final = {
    "Jobs": "Jobs: submit, follow, wait, change, explain; commands in jobs; uploads.",
    "Nodes": "Nodes and their devices, and the cluster as a whole.",
    "Models": "Models: deploy, scale, share, and their adapters and resident data.",
    "Allocations": "Devices that are held without a command.",
    "Events": "The facts of the log, and changes of jobs and nodes.",
    "Inference": "Requests to models.",
    "Locks": "Locks of a tenant: acquire, renew, release, list.",
}


def _imports(needed: Iterable[str], home: dict[str, str], service: str) -> tuple[str, ...]:
    return tuple(sorted({home[name].lower() for name in needed if home[name] != service}))


def _asked(types: Types, requests: Iterable[str]) -> frozenset[str]:
    """Return the messages that requests consist of."""
    return frozenset(name for request in requests for name in types.closure(request))


def _calls(types: Types, service: str) -> tuple[Call, ...]:
    return tuple(
        Call(
            name=method.name,
            text=_text(types.operation(method), method),
            request=types.request(method),
            answer=types.answer(method),
            streams_requests=method.kind.streams_requests,
            streams_answers=method.kind.streams_answers,
        )
        for method in methods.METHODS
        if method.service == service
    )


def _text(operation: Schema, method: Method) -> str:
    own = str(operation.get("description") or operation.get("summary", ""))
    text = method.text or own.partition("\n\n")[0].replace("\n", " ")
    return f"{text} ({method.verb} {method.path})" if text else f"{method.verb} {method.path}"


def _message(types: Types, name: str, is_asked: bool, numbers: Numbers) -> Message:
    described = types.described[name]
    kept = numbers.setdefault(name, {})
    for each in described.properties:
        kept.setdefault(each, max(kept.values(), default=0) + 1)
    fields = tuple(
        _field(each, schema, described, is_asked)._replace(number=kept[each])
        for each, schema in described.properties.items()
    )
    removed = tuple((each, n) for each, n in kept.items() if each not in described.properties)
    return Message(name, inspect.cleandoc(described.text), fields, removed)


def _field(name: str, schema: Schema, described: Described, is_asked: bool) -> Field:
    kind = kind_of(schema)
    is_given = described.is_request and name in described.required
    may_miss = kind.is_nullable or (name not in described.required and "default" not in schema)
    return Field(
        name=name,
        kind=kind,
        is_optional=kind.is_scalar and not is_given and (may_miss or is_asked),
        text=str(schema.get("description", "")),
    )
