"""docs/api_reference.md: every route with its fields, answers and gRPC methods, and every type.

Pure. Tests: tests/unit/test_api_description.py.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from libs.docs.markdown import block, code, page, prose, table
from services.api_gateway.description.proto_kinds import MARK, Schema
from services.api_gateway.rpc.methods import METHODS, PACKAGE

HEADINGS: Final = {
    "jobs": "Jobs",
    "streams": "Output, input, commands and ports of jobs",
    "health": "Health and version",
    "openai": "Requests to models",
    "log": "The log",
}
# Enumerations up to this length are shown whole.
WORDS_MAX: Final = 8
INTRODUCTION: Final = (
    "Every route of the gateway with its fields. [REST API](rest.md) explains what all routes have "
    "in common, [gRPC](grpc.md) the methods. `/openapi.json` of a running gateway and "
    "[openapi.json](reference/openapi.json) hold the same description for programs; "
    "`proto/muster/v1/` has the messages and services of gRPC."
)
FORMS: Final = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean"}


def reference(document: Schema) -> str:
    """Return the page."""
    sections: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for verb, operation in operations.items():
            tag = str(operation.get("tags", ["other"])[0])
            sections.setdefault(tag, []).extend(_route(verb.upper(), path, operation))
    parts = [INTRODUCTION]
    for tag, rows in sections.items():
        parts += [f"## {HEADINGS.get(tag) or tag.replace('_', ' ').capitalize()}", *rows]
    return page("API reference", *parts, "## Types", *_types(document["components"]["schemas"]))


def _route(verb: str, path: str, operation: Schema) -> Iterator[str]:
    yield f"### {verb} {path}"
    yield prose(str(operation.get("description") or operation.get("summary", "")))
    methods = [each for each in METHODS if each.route == (verb, path)]
    if methods:
        named = ", ".join(code(f"{PACKAGE}.{each.service}/{each.name}") for each in methods)
        yield f"gRPC: {named}"
    rows = [*_parameters(operation), *_body(operation)]
    if rows:
        yield table(("field", "in", "type", "meaning"), rows)
    yield f"Answers: {_answers(operation)}."


def _parameters(operation: Schema) -> Iterator[tuple[str, str, str, str]]:
    for each in operation.get("parameters", ()):
        text = str(each.get("description", ""))
        yield code(each["name"]), each["in"], shown(each["schema"]), _meaning(each["schema"], text)


def _body(operation: Schema) -> Iterator[tuple[str, str, str, str]]:
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        schema = content["schema"]
        needed = schema.get("required", ())
        for name, field in schema.get("properties", {}).items():
            where = "body (required)" if name in needed else "body"
            yield code(name), where, shown(field), _meaning(field, "")
        if "properties" not in schema:
            yield "", "body", media, "bytes"


def _answers(operation: Schema) -> str:
    found = []
    for status, answer in operation["responses"].items():
        if status[0] in "123":
            kinds = [
                f"{media} {shown(content['schema'])}".strip()
                for media, content in answer.get("content", {}).items()
            ]
            found.append(f"{status} {' or '.join(kinds)}".strip())
    return "; ".join(found)


def _meaning(schema: Schema, text: str) -> str:
    parts = [text or str(schema.get("description", ""))]
    words = schema.get("enum")
    if words:
        named = ", ".join(code(str(word) or '""') for word in words[:WORDS_MAX])
        parts.append(f"one of {named}{' …' if len(words) > WORDS_MAX else ''}")
    if "minimum" in schema and "maximum" in schema:
        parts.append(f"{schema['minimum']} to {schema['maximum']}")
    if schema.get("default") not in (None, "", [], {}):
        parts.append(f"default {code(str(schema['default']))}")
    return "; ".join(part for part in parts if part)


def shown(schema: Schema) -> str:
    """Return a schema's type in words."""
    if "$ref" in schema:
        name = str(schema["$ref"]).removeprefix(MARK)
        return f"[{_plain(name)}](#{_plain(name).lower()})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(shown(each) for each in schema["anyOf"]))
    kind, items = schema.get("type"), schema.get("items")
    if kind == "array":
        return f"list of {shown(items)}" if isinstance(items, dict) and items else "list"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"map of {shown(values)}" if isinstance(values, dict) and values else "object"
    return FORMS.get(str(kind), str(kind or "any JSON"))


def _types(schemas: dict[str, Schema]) -> Iterable[str]:
    for name, schema in sorted(schemas.items(), key=lambda row: _plain(row[0])):
        yield f"### {_plain(name)}"
        yield prose(str(schema.get("description", "")))
        rows = [
            (code(field), shown(kind), _meaning(kind, ""))
            for field, kind in schema.get("properties", {}).items()
        ]
        yield table(("field", "type", "meaning"), rows) if rows else block("{}")


def _plain(name: str) -> str:
    """Return the name of a type; types of one name are told apart by their modules."""
    module, _, plain = name.rpartition(".")
    return f"{module.rpartition('.')[2].title()}{plain}" if module else plain
