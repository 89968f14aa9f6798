"""The changes in a description of the API that break clients of an earlier one.

Each fault is one line that names the route, the type or the message. An empty list: a client of the
earlier release works with the new one. A new field, route, method or value is no fault.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet

Schema = dict[str, Any]

MARK: Final = "#/components/schemas/"


def broken_routes(old: Schema, new: Schema) -> list[str]:
    """The faults of an OpenAPI document against an earlier one."""
    found: list[str] = []
    for path, operations in old["paths"].items():
        for verb, operation in operations.items():
            now = new["paths"].get(path, {}).get(verb)
            where = f"{verb.upper()} {path}"
            found += [f"{where} is gone"] if now is None else _operation(where, operation, now)
    asked = frozenset(_reachable(old, _bodies(old)))
    schemas = new["components"]["schemas"]
    for name, schema in old["components"]["schemas"].items():
        if name not in schemas:
            found.append(f"type {name} is gone")
        else:
            found += _fields(name, schema, schemas[name], is_asked=name in asked)
    return found


def _operation(where: str, old: Schema, new: Schema) -> Iterator[str]:
    now = {(each["name"], each["in"]): each for each in new.get("parameters", ())}
    before = {(each["name"], each["in"]): each for each in old.get("parameters", ())}
    for key, each in before.items():
        if key not in now:
            yield f"{where}: parameter {key[0]} is gone"
        else:
            yield from _accepts(f"{where}: {key[0]}", each["schema"], now[key]["schema"])
    for key, each in now.items():
        if each.get("required") and not before.get(key, {}).get("required"):
            yield f"{where}: parameter {key[0]} is required"
    yield from _body(where, old.get("requestBody", {}), new.get("requestBody", {}))
    yield from _answers(where, old["responses"], new["responses"])


def _body(where: str, old: Schema, new: Schema) -> Iterator[str]:
    for media, content in old.get("content", {}).items():
        now = new.get("content", {}).get(media)
        if now is None:
            yield f"{where}: a body of {media} is not accepted any more"
            continue
        yield from _fields(f"{where}: body", content["schema"], now["schema"], is_asked=True)
    if new.get("required") and not old.get("required"):
        yield f"{where}: a body is required"


def _answers(where: str, old: Schema, new: Schema) -> Iterator[str]:
    for status, answer in old.items():
        now = new.get(status)
        if now is None:
            yield f"{where}: status {status} is gone"
            continue
        for media, content in answer.get("content", {}).items():
            if media not in now.get("content", {}):
                yield f"{where}: {status} has no {media} any more"
            elif kinds(content["schema"]) != kinds(now["content"][media]["schema"]):
                yield f"{where}: {status} {media} has another type"


def _fields(where: str, old: Schema, new: Schema, is_asked: bool) -> Iterator[str]:
    for name, schema in old.get("properties", {}).items():
        now = new.get("properties", {}).get(name)
        if now is None:
            yield f"{where}.{name} is gone"
        elif is_asked:
            yield from _accepts(f"{where}.{name}", schema, now)
        elif kinds(schema) != kinds(now):
            yield f"{where}.{name} has another type"
    if is_asked:
        for name in new.get("required", ()):
            if name not in old.get("required", ()):
                yield f"{where}.{name} is required"


def _accepts(where: str, old: Schema, new: Schema) -> Iterator[str]:
    """Return the inputs that were accepted and are refused now."""
    if not kinds(old) <= kinds(new):
        yield f"{where} has another type"
    gone = [word for word in old.get("enum", ()) if "enum" in new and word not in new["enum"]]
    if gone or ("enum" in new and "enum" not in old):
        yield f"{where} does not accept {gone or 'every text'} any more"
    if new.get("minimum", 0) > old.get("minimum", 0) or (
        "maximum" in new and new["maximum"] < old.get("maximum", new["maximum"] + 1)
    ):
        yield f"{where} has narrower bounds"


def kinds(schema: Schema) -> frozenset[str]:
    """The types that a value may have, in words."""
    if "$ref" in schema:
        return frozenset((str(schema["$ref"]).removeprefix(MARK),))
    if "anyOf" in schema:
        return frozenset(kind for each in schema["anyOf"] for kind in kinds(each))
    kind = str(schema.get("type", "any"))
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items") or {}]
        return frozenset((f"list of {[sorted(kinds(each)) for each in items]}",))
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return frozenset((f"map of {sorted(kinds(schema['additionalProperties']))}",))
    return frozenset((kind,))


def _bodies(document: Schema) -> Iterator[Schema]:
    for operations in document["paths"].values():
        for operation in operations.values():
            yield operation.get("requestBody", {})


def _reachable(document: Schema, values: Iterable[Any]) -> set[str]:
    """The types that these values refer to, and those that they consist of."""
    found: set[str] = set()
    left = list(values)
    while left:
        value = left.pop()
        if isinstance(value, dict):
            reference = value.get("$ref")
            if isinstance(reference, str) and (name := reference.removeprefix(MARK)) not in found:
                found.add(name)
                left.append(document["components"]["schemas"][name])
            left += value.values()
        elif isinstance(value, list):
            left += value
    return found


def broken_messages(old: FileDescriptorSet, new: FileDescriptorSet) -> list[str]:
    """The faults of proto files against earlier ones."""
    found: list[str] = []
    services = {each.name: each for file in new.file for each in file.service}
    for service in (each for file in old.file for each in file.service):
        now = services.get(service.name)
        methods = {} if now is None else {each.name: each for each in now.method}
        for method in service.method:
            if methods.get(method.name) != method:
                found.append(f"method {service.name}/{method.name} is gone or has another form")
    messages = {each.name: each for file in new.file for each in file.message_type}
    for message in (each for file in old.file for each in file.message_type):
        found += _message(message, messages.get(message.name))
    return found


def _message(old: DescriptorProto, new: DescriptorProto | None) -> Iterator[str]:
    if new is None:
        yield f"message {old.name} is gone"
        return
    now = {field.name: field for field in new.field}
    numbers = {field.number: field.name for field in new.field}
    for field in old.field:
        found = now.get(field.name)
        if found is None:
            yield f"field {old.name}.{field.name} is gone"
        elif (found.type, found.type_name, found.label) != (
            field.type,
            field.type_name,
            field.label,
        ):
            yield f"field {old.name}.{field.name} has another type"
        if numbers.get(field.number, field.name) != field.name:
            yield f"number {field.number} of {old.name}.{field.name} was given to another field"
        if found is not None and found.number != field.number:
            yield f"field {old.name}.{field.name} has another number"
